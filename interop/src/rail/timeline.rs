//! A trip with its contenders as a picture (SVG).
//!
//! The upper panels show the capacity of each carrier with its handovers. Below, each contender has
//! a row with the goodput, the rates of the carriers and the events of the gateway.

use std::fmt::Write as _;

use anyhow::Result;
use polyrail_emulator::rail::{Course, HandoverResult, Trip, Workload};
use polyrail_emulator::record::{CarrierRun, CarrierSample, Event, Run, SAMPLE_S, Transferred};
use polyrail_emulator::statistics::quantile;

use super::document::name_of;
use polyrail_emulator::usage::{Capacity, interpolated};

/// The picture of a trip: capacities, and the first run of each contender.
///
/// # Errors
/// The trip cannot be built.
pub fn svg(course: &Course, runs: &[&Run]) -> Result<String> {
    let route = course.route()?;
    let trip = course.trip(&route)?;
    let names = route.names();
    let mut rows: Vec<&Run> = Vec::new();
    for run in runs {
        if rows.iter().all(|row| row.contender != run.contender) {
            rows.push(run);
        }
    }
    let up = rows.first().is_some_and(|run| run.workload == Workload::Uploads);
    let height = TOP + PITCH * (names.len() + rows.len()) as f64 + 30.0;
    let mut picture = Picture { text: String::new(), seconds: course.seconds as f64, names };
    let workload = rows.first().map_or("no runs", |run| name_of(run.workload));
    let (speed, failures) = (course.speed_kmh, course.failures);
    let title = format!(
        "Seed {}: {workload}, {speed} km/h, {failures} % of handovers fail; Mbit/s",
        course.seed
    );
    picture.head(height, &title)?;
    picture.capacities(&trip, up)?;
    picture.rows(&rows, up)?;
    picture.seconds(height)?;
    writeln!(picture.text, "</svg>")?;
    Ok(picture.text)
}

struct Picture<'a> {
    text: String,
    seconds: f64,
    /// The names of the carriers.
    names: Vec<&'a str>,
}

/// A panel: its upper edge, and the rate of this edge in Mbit/s.
#[derive(Clone, Copy)]
struct Panel {
    top: f64,
    scale: f64,
}

impl Panel {
    fn y(&self, mbps: f64) -> f64 {
        self.top + HEIGHT * (1.0 - (mbps / self.scale).clamp(0.0, 1.0))
    }
}

impl Picture<'_> {
    fn x(&self, at_s: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (at_s / self.seconds).clamp(0.0, 1.0)
    }

    fn head(&mut self, height: f64, title: &str) -> Result<()> {
        let text = &mut self.text;
        writeln!(
            text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\"\n     \
             width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n{STYLE}\n<title>{title}</title>\n\
             <text x=\"10\" y=\"20\" class=\"title\">{title}</text>"
        )?;
        writeln!(
            text,
            "<text x=\"10\" y=\"40\" class=\"note\">Above: capacity, outages (shaded), handovers \
             (ticks; red: failed). Below: goodput (filled), carriers (lines), forecasts (bars). \
             Higher rates are cut.</text>"
        )?;
        let mut x = 10.0;
        for (kind, class) in MARKS {
            writeln!(text, "<path class=\"{class}\" d=\"M{x} 52h8l-4 8z\"/>")?;
            writeln!(text, "<text x=\"{}\" y=\"60\" class=\"note\">{kind}</text>", x + 12.0)?;
            x += 120.0;
        }
        Ok(())
    }

    /// The frame and the label of a panel.
    fn frame(&mut self, panel: Panel, label: &str) -> Result<()> {
        let (base, end) = (panel.y(0.0), self.x(self.seconds));
        writeln!(
            self.text,
            "<path class=\"grid\" d=\"M{LEFT} {:.1}H{end}M{LEFT} {base:.1}H{end}\"/>\n\
             <text x=\"10\" y=\"{:.1}\">{}</text>\n\
             <text x=\"{}\" y=\"{:.1}\" class=\"note\" text-anchor=\"end\">{:.0}</text>",
            panel.top,
            panel.top + HEIGHT / 2.0 + 5.0,
            escaped(label),
            LEFT - 4.0,
            panel.top + 9.0,
            panel.scale,
        )?;
        Ok(())
    }

    fn capacities(&mut self, trip: &Trip, up: bool) -> Result<()> {
        let links = trip.carriers.iter().map(|carrier| &carrier.links[usize::from(!up)]);
        let lists: Vec<Vec<(f64, f64)>> = links
            .map(|link| Capacity::of(link).0.iter().map(|(at, rate)| (*at, rate / 1e6)).collect())
            .collect();
        let scale = scale_of(lists.iter().flatten());
        for (place, (list, carrier)) in lists.iter().zip(&trip.carriers).enumerate() {
            let panel = Panel { top: TOP + PITCH * place as f64, scale };
            self.frame(panel, &format!("carrier {}", self.names[place]))?;
            for handover in &carrier.handovers {
                let at = handover.at.as_secs_f64();
                let (x, end) = (self.x(at), self.x(at + handover.dark.as_secs_f64()));
                let failed = handover.outcome != HandoverResult::Success;
                writeln!(
                    self.text,
                    "<rect class=\"dark\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" \
                     height=\"{HEIGHT}\"/>\n<path class=\"{}\" d=\"M{x:.1} {:.1}v8\"/>",
                    panel.top,
                    end - x,
                    if failed { "failed" } else { "tick" },
                    panel.y(0.0),
                )?;
            }
            self.curve(panel, class(place), list)?;
        }
        Ok(())
    }

    fn rows(&mut self, rows: &[&Run], up: bool) -> Result<()> {
        let bins = (self.seconds / BIN_S) as u32;
        let goodput = |run: &Run| {
            let curves: Vec<Vec<(f64, f64)>> = run.transfers.iter().map(curve_of).collect();
            binned(bins, |at| curves.iter().map(|curve| clamped(curve, at)).sum())
        };
        let all: Vec<(&&Run, Vec<(f64, f64)>)> =
            rows.iter().map(|run| (run, goodput(run))).collect();
        let rates = |run: &Run| -> Vec<(String, Vec<(f64, f64)>)> {
            let of_carrier = |carrier: &CarrierRun| {
                let bytes = |it: &CarrierSample| (it.at_s, if up { it.up } else { it.down } as f64);
                let curve: Vec<(f64, f64)> = carrier.samples.iter().map(bytes).collect();
                (carrier.name.clone(), binned(bins, |at| clamped(&curve, at)))
            };
            run.carriers.iter().map(of_carrier).collect()
        };
        let lines: Vec<_> = rows.iter().map(|run| rates(run)).collect();
        let rates = lines.iter().flatten().flat_map(|line| &line.1);
        let scale = scale_of(all.iter().flat_map(|row| &row.1).chain(rates));
        for (place, ((run, goodput), lines)) in all.iter().zip(&lines).enumerate() {
            let top = TOP + PITCH * (self.names.len() + place) as f64;
            let panel = Panel { top, scale };
            writeln!(self.text, "<g class=\"row\">")?;
            let note = if run.starved.is_some() { " (starved)" } else { "" };
            self.frame(panel, &format!("{}{note}", run.contender))?;
            self.curve(panel, "goodput", goodput)?;
            for (name, line) in lines {
                let place = self.names.iter().position(|it| it == name);
                self.curve(panel, place.map_or("other", class), line)?;
            }
            self.events(panel, &run.events)?;
            writeln!(self.text, "</g>")?;
        }
        Ok(())
    }

    /// Steps from each time on; the last step reaches the end of the trip. The goodput is filled.
    fn curve(&mut self, panel: Panel, class: &str, list: &[(f64, f64)]) -> Result<()> {
        let Some(first) = list.first() else { return Ok(()) };
        write!(self.text, "<path class=\"{class} line\" d=\"")?;
        let begin = if class == "goodput" { 0.0 } else { first.1 };
        write!(self.text, "M{:.1} {:.1}", self.x(first.0), panel.y(begin))?;
        let mut last = begin;
        for (at, value) in list {
            if *value != last {
                let x = self.x(*at);
                write!(self.text, "H{x:.1}V{:.1}", panel.y(*value))?;
                last = *value;
            }
        }
        let end = self.x(self.seconds);
        let base = panel.y(0.0);
        let close = if class == "goodput" { format!("V{base:.1}Z") } else { String::new() };
        writeln!(self.text, "H{end:.1}{close}\"/>")?;
        Ok(())
    }

    fn events(&mut self, panel: Panel, events: &[Event]) -> Result<()> {
        for (place, event) in events.iter().enumerate() {
            let (x, carrier) = (self.x(event.at_s), event.carrier.as_deref().unwrap_or_default());
            let label = escaped(&format!("{} {carrier} {:.2} s", event.kind, event.at_s));
            if let Some((_, class)) = MARKS.iter().find(|mark| mark.0 == event.kind) {
                writeln!(
                    self.text,
                    "<path class=\"{class}\" d=\"M{:.1} {:.1}h8l-4 8z\"><title>{label}</title>\
                     </path>",
                    x - 4.0,
                    panel.top - 9.0,
                )?;
            } else if event.kind == "forecast_begin" {
                let ends = |it: &&Event| it.kind == "forecast_end" && it.carrier == event.carrier;
                let end = events[place..].iter().find(ends).map_or(self.seconds, |it| it.at_s);
                let number = self.names.iter().position(|name| *name == carrier);
                writeln!(
                    self.text,
                    "<rect class=\"{} bar\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" \
                     height=\"3\"><title>{label}</title></rect>",
                    number.map_or("other", class),
                    panel.y(0.0) + 2.0 + 4.0 * number.unwrap_or_default() as f64,
                    self.x(end) - x,
                )?;
            }
        }
        Ok(())
    }

    /// The axis of time.
    fn seconds(&mut self, height: f64) -> Result<()> {
        let mut at = 0.0;
        while at <= self.seconds {
            let x = self.x(at);
            writeln!(
                self.text,
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{:.1}\"/>\n\
                 <text x=\"{x:.1}\" y=\"{:.1}\" class=\"note\" \
                 text-anchor=\"middle\">{at} s</text>",
                height - 28.0,
                height - 12.0,
            )?;
            at += 10.0;
        }
        Ok(())
    }
}

/// The bytes of a transfer over time.
fn curve_of(transfer: &Transferred) -> Vec<(f64, f64)> {
    let samples = transfer.progress.iter().zip(0_u32..);
    let samples = samples.map(|(bytes, tick)| (f64::from(tick) * SAMPLE_S, *bytes as f64));
    let end = (transfer.took_s, transfer.received as f64);
    let samples = samples.filter(|sample| sample.0 < end.0).chain([end]);
    samples.map(|(after, bytes)| (transfer.at_s + after, bytes)).collect()
}

/// The value at a time; outside, that of the nearest point.
fn clamped(curve: &[(f64, f64)], at: f64) -> f64 {
    let (Some(first), Some(last)) = (curve.first(), curve.last()) else { return 0.0 };
    interpolated(curve, at).unwrap_or(if at < first.0 { first.1 } else { last.1 })
}

/// Mbit/s in each bin, of bytes over time.
fn binned(bins: u32, bytes: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
    let times = (0..bins).map(|bin| f64::from(bin) * BIN_S);
    times.map(|at| (at, (bytes(at + BIN_S) - bytes(at)) * 8e-6 / BIN_S)).collect()
}

/// The rate of the upper edge of a panel. A few high rates would flatten all others: they are cut.
fn scale_of<'a>(points: impl Iterator<Item = &'a (f64, f64)>) -> f64 {
    let rates: Vec<f64> = points.map(|point| point.1).filter(|rate| *rate > 0.0).collect();
    (quantile(&rates, 0.95) * 1.2).max(1.0)
}

fn class(carrier: usize) -> &'static str {
    ["a", "b"].get(carrier).unwrap_or(&"other")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const WIDTH: f64 = 1_000.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 84.0;
/// The height of a panel, and the distance between two.
const HEIGHT: f64 = 64.0;
const PITCH: f64 = 88.0;
const BIN_S: f64 = 0.5;
/// Events of the gateway, and the classes of their marks.
const MARKS: [(&str, &str); 4] = [
    ("path_stalled", "stalled"),
    ("path_restarted", "restarted"),
    ("path_demoted", "demoted"),
    ("mode_changed", "changed"),
];
const STYLE: &str = "<style>
text { font: 13px sans-serif; fill: #24292f; }
.title { font-weight: bold; font-size: 14px; }
.note { fill: #57606a; font-size: 12px; }
.grid { stroke: #8b949e; stroke-opacity: 0.35; }
.dark { fill: #8b949e; fill-opacity: 0.35; }
.tick { stroke: #57606a; stroke-width: 2; }
.failed { stroke: #cf222e; stroke-width: 2; }
.a { stroke: #1f6feb; }
.b { stroke: #d2691e; }
.other { stroke: #6e7781; }
.line { fill: none; }
.bar { stroke-width: 0; }
.a.bar { fill: #1f6feb; }
.b.bar { fill: #d2691e; }
.goodput { fill: #2da44e; fill-opacity: 0.35; }
.stalled { fill: #cf222e; }
.restarted { fill: #2da44e; }
.demoted { fill: #8250df; }
.changed { fill: #bf8700; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .note { fill: #9da7b1; }
  .tick { stroke: #9da7b1; }
  .a { stroke: #58a6ff; }
  .b { stroke: #f0883e; }
  .failed { stroke: #ff7b72; }
}
</style>";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rail::summary::tests::{COURSE, run, transfer};

    /// Checks that elements are closed in their order, and that text has no bare character.
    fn assert_well_formed(text: &str) {
        let mut open = Vec::new();
        for part in text.split('<').skip(1) {
            let (tag, rest) = part.split_once('>').unwrap();
            assert!(!rest.contains('>') && !rest.replace("&amp;", "").contains('&'), "{rest}");
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            let name = tag.split_whitespace().next().unwrap();
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if tag.ends_with('/') => {}
                None => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn picture_is_well_formed_and_has_a_row_for_each_contender() {
        let mut first = run(COURSE, "quic & linkdb", 8.0);
        let event = |at_s: f64, kind: &str| {
            let (kind, carrier) = (kind.to_owned(), Some("b".to_owned()));
            Event { at_s, kind, carrier }
        };
        first.events = vec![
            event(12.0, "path_stalled"),
            event(20.0, "forecast_begin"),
            event(23.0, "forecast_end"),
            event(24.0, "unknown"),
        ];
        let (second, other) = (run(COURSE, "tls", 4.0), run(COURSE, "tls", 2.0));
        let text = svg(&COURSE, &[&first, &second, &other]).unwrap();
        assert_well_formed(&text);
        assert_eq!(text.matches("class=\"row\"").count(), 2);
        assert_eq!(text.matches("class=\"stalled\"").count(), 2, "a mark and the legend");
        // 3 s of 60 s on 826 pixels.
        assert!(text.contains("class=\"b bar\"") && text.contains("width=\"41.3\""), "{text}");
        assert_well_formed(&svg(&COURSE, &[]).unwrap());
    }

    #[test]
    fn goodput_is_binned() {
        // 500,000 bytes within 0.1 s from 1.25 s on.
        let curve = curve_of(&transfer(1.25, 500_000, 0.5));
        let list = binned(4, |at| clamped(&curve, at));
        assert_eq!(list.iter().map(|bin| bin.1.round()).collect::<Vec<_>>(), [0.0, 0.0, 8.0, 0.0]);
    }
}
