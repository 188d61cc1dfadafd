//! Plots as SVG, and as PNG where `rsvg-convert` is there.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Values under one name: a value a row, or the points of a line.
pub type Series<T> = (String, Vec<T>);

/// A plot's words.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    /// Above it.
    pub title: &'a str,
    /// Below it.
    pub x: &'a str,
    /// Beside it; bars have none.
    pub y: &'a str,
}

/// Bars that lie side by side, for each row one of each series.
///
/// # Errors
/// The file cannot be written.
pub fn bars(path: &Path, words: Words<'_>, rows: &[String], series: &[Series<f64>]) -> Result<()> {
    let per_row = series.len() as i32;
    let height = (BAR * per_row + GAP) * rows.len() as i32 + AROUND;
    let root = SVGBackend::new(path, (WIDTH, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let most = series.iter().flat_map(|(_, values)| values).copied().filter(|it| it.is_finite());
    let most = most.fold(0.0, f64::max).max(1e-9) * 1.05;
    let mut chart = ChartBuilder::on(&root)
        .caption(words.title, ("sans-serif", 18))
        .margin(10)
        .margin_right(20)
        .x_label_area_size(40)
        .y_label_area_size(NAMES)
        .build_cartesian_2d(0.0..most, 0.0..rows.len() as f64)?;
    chart.configure_mesh().disable_y_mesh().disable_y_axis().x_desc(words.x).draw()?;
    let part = 0.84 / f64::from(per_row);
    for (number, (name, values)) in series.iter().enumerate() {
        let colour = colour(number);
        let bar = |(row, value): (usize, &f64)| {
            let top = (rows.len() - row) as f64 - 0.08 - part * number as f64;
            let value = if value.is_finite() { *value } else { 0.0 };
            Rectangle::new([(0.0, top), (value, top - part * 0.92)], colour.filled())
        };
        chart
            .draw_series(values.iter().enumerate().map(bar))?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    }
    let style = ("sans-serif", 12).into_font().color(&BLACK);
    let style = style.pos(Pos::new(HPos::Right, VPos::Center));
    for (row, name) in rows.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(0.0, (rows.len() - row) as f64 - 0.5));
        root.draw_text(name, &style, (x - 6, y))?;
    }
    if series.len() > 1 {
        legend(&mut chart, SeriesLabelPosition::LowerRight)?;
    }
    root.present().with_context(|| format!("{}", path.display()))
}

/// Lines with a logarithmic x axis.
///
/// # Errors
/// The file cannot be written.
pub fn lines(path: &Path, words: Words<'_>, series: &[Series<(f64, f64)>]) -> Result<()> {
    let points = || series.iter().flat_map(|(_, points)| points).filter(|it| it.0 > 0.0);
    let least = points().map(|it| it.0).fold(f64::INFINITY, f64::min);
    let most = points().map(|it| it.0).fold(0.0, f64::max);
    if least >= most {
        return Ok(());
    }
    let root = SVGBackend::new(path, (WIDTH, LINES_HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(words.title, ("sans-serif", 18))
        .margin(10)
        .margin_right(20)
        .x_label_area_size(40)
        .y_label_area_size(55)
        .build_cartesian_2d((least..most).log_scale(), 0.0..1.0)?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_labels(LINES_LABELS)
        .x_label_formatter(&|value| format!("{value:.2}"))
        .y_label_formatter(&|value| format!("{value:.1}"))
        .x_desc(words.x)
        .y_desc(words.y)
        .draw()?;
    for (number, (name, points)) in series.iter().enumerate() {
        let style = colour(number).stroke_width(2);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], style));
    }
    legend(&mut chart, SeriesLabelPosition::LowerRight)?;
    root.present().with_context(|| format!("{}", path.display()))
}

/// The points of a cumulative distribution, at most a few hundred.
pub fn distribution(values: &[f64]) -> Vec<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let step = (sorted.len() / POINTS).max(1);
    let last = sorted.len().saturating_sub(1);
    let taken = sorted.iter().enumerate().filter(|(i, _)| i % step == 0 || *i == last);
    taken.map(|(i, value)| (*value, (i + 1) as f64 / sorted.len() as f64)).collect()
}

/// Makes a PNG beside each SVG.
///
/// # Errors
/// The program that does it is there and fails.
pub fn pngs(svgs: &[PathBuf]) -> Result<()> {
    for svg in svgs.iter().filter(|svg| svg.exists()) {
        let png = svg.with_extension("png");
        match Command::new("rsvg-convert").arg("-o").arg(&png).arg(svg).status() {
            Ok(status) if status.success() => {}
            Ok(status) => bail!("rsvg-convert {}: {status}", svg.display()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                println!("no rsvg-convert: the PNGs are left out (package librsvg2-bin)");
                return Ok(());
            }
            Err(error) => return Err(error).context("rsvg-convert"),
        }
    }
    Ok(())
}

type Chart<'a, 'b, X> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Axis>>;
type Axis = plotters::coord::types::RangedCoordf64;

fn legend<'a, 'b: 'a, X>(chart: &mut Chart<'a, 'b, X>, place: SeriesLabelPosition) -> Result<()>
where
    X: plotters::coord::ranged1d::Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(place)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.4))
        .label_font(("sans-serif", 12))
        .draw()?;
    Ok(())
}

/// Colours that also differ without red and green (Okabe and Ito).
fn colour(number: usize) -> RGBColor {
    const COLOURS: [(u8, u8, u8); 8] = [
        (0, 114, 178),
        (213, 94, 0),
        (0, 158, 115),
        (204, 121, 167),
        (86, 180, 233),
        (230, 159, 0),
        (60, 60, 60),
        (200, 190, 40),
    ];
    let (red, green, blue) = COLOURS[number % COLOURS.len()];
    RGBColor(red, green, blue)
}

const WIDTH: u32 = 900;
const LINES_HEIGHT: u32 = 560;
/// On an axis by order of magnitude more would lie over each other.
const LINES_LABELS: usize = 6;
const NAMES: u32 = 320;
const BAR: i32 = 7;
const GAP: i32 = 7;
const AROUND: i32 = 90;
const POINTS: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_ends_at_one() {
        assert_eq!(distribution(&[3.0, 1.0]), [(1.0, 0.5), (3.0, 1.0)]);
        let many: Vec<f64> = (0..10_001).map(f64::from).collect();
        let points = distribution(&many);
        assert!(points.len() < 500);
        assert_eq!(points.last(), Some(&(10_000.0, 1.0)));
        assert!(distribution(&[]).is_empty());
    }
}
