//! Pictures: rate, queue and backoff of both halves over time.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use polyrail_emulator::trials::Sample;

use super::Pair;

/// Draws the first run of each half into one SVG.
pub(super) fn draw(pair: &Pair, out: &Path) -> Result<()> {
    let path = out.join(format!("validation_{}.svg", pair.name()));
    plot(pair, &path).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn plot(pair: &Pair, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    // Nobody counts the timeouts of a tunnel.
    let count: u32 = if pair.flow.is_kernel() { 3 } else { 2 };
    let area = SVGBackend::new(path, (900, 40 + 240 * count)).into_drawing_area();
    area.fill(&WHITE)?;
    let area = area.titled(&pair.name().replace('_', " "), ("sans-serif", 20))?;
    let parts = area.split_evenly((count as usize, 1));
    let length = pair.trial.length.as_secs_f64();
    let real = pair.real.first().map_or(&[][..], |run| &run.samples);
    let simulated = pair.simulated.first().map_or(&[][..], |run| &run.samples);
    type Curve = fn(&[Sample]) -> Vec<(f64, f64)>;
    let curves: [(&str, Curve); 3] = [
        ("delivered, Mbit/s over 0.25 s", rates),
        ("queue, KiB", |samples| of(samples, |s| s.queue as f64 / 1_024.0)),
        ("timeouts in a row", |samples| of(samples, |s| f64::from(s.backoff))),
    ];
    for (part, (caption, curve)) in parts.iter().zip(curves) {
        let (real, simulated) = (curve(real), curve(simulated));
        let top = real.iter().chain(&simulated).map(|(_, y)| *y).fold(1.0, f64::max) * 1.05;
        let mut chart = ChartBuilder::on(part)
            .caption(caption, ("sans-serif", 14))
            .margin(6)
            .x_label_area_size(22)
            .y_label_area_size(44)
            .build_cartesian_2d(0.0..length, 0.0..top)?;
        if let Some(dark) = pair.trial.dark {
            let (from, to) = (dark.start.as_secs_f64(), (dark.start + dark.length).as_secs_f64());
            let shade = Rectangle::new([(from, 0.0), (to, top)], BLACK.mix(0.08).filled());
            chart.draw_series([shade])?;
        }
        chart.configure_mesh().light_line_style(WHITE).draw()?;
        for (name, line, colour) in [(pair.flow.who(), real, BLUE), ("simulated", simulated, RED)] {
            chart
                .draw_series(LineSeries::new(line, colour.mix(0.8)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
        }
        chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
    }
    area.present()?;
    Ok(())
}

fn of(samples: &[Sample], value: fn(&Sample) -> f64) -> Vec<(f64, f64)> {
    samples.iter().map(|sample| (sample.at_s, value(sample))).collect()
}

fn rates(samples: &[Sample]) -> Vec<(f64, f64)> {
    let pairs = samples.iter().zip(samples.iter().skip(STEPS)).step_by(STEPS);
    pairs
        .map(|(a, b)| (b.at_s, (b.delivered - a.delivered) as f64 * 8e-6 / (b.at_s - a.at_s)))
        .collect()
}

/// Samples of one point of a rate.
const STEPS: usize = 5;
