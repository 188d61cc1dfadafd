//! `polyrail linkdb plot`: the line as a picture.
//!
//! The track runs from left to right, in strips. Each carrier has a band: its cells in two shades,
//! each up to the mean place of its handovers, with its name; a grey tick for each handover that
//! went well, a red one for each that failed, from the oldest trip at the top of the band to the
//! newest at its foot; and a blue line where a failure is forecast.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, ensure};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use polyrail_model::{Direction, RouteId};
use polyrail_predictor::history::{CellHistory, CellKey, PASSAGES_MAX};

/// One way along one track.
pub(super) struct Picture {
    title: String,
    carriers: BTreeMap<String, Vec<Cell>>,
    from: f64,
    to: f64,
}

/// A cell as it is drawn.
struct Cell {
    name: String,
    /// The mean place of its handovers.
    end: f64,
    /// Each handover: where, and whether it failed.
    passages: Vec<(f64, bool)>,
    forecast: Option<f64>,
}

impl Picture {
    /// The cells of one direction of a track; `forecast` returns the predicted failure position.
    ///
    /// # Errors
    /// There is nothing to draw.
    pub(super) fn new(
        cells: &[(CellKey, CellHistory)],
        route: RouteId,
        direction: Direction,
        mut forecast: impl FnMut(&CellKey) -> Option<f64>,
    ) -> Result<Self> {
        let mut carriers: BTreeMap<String, Vec<Cell>> = BTreeMap::new();
        let (mut from, mut to) = (f64::INFINITY, f64::NEG_INFINITY);
        for (key, history) in cells {
            let count = history.passages().len();
            if key.route != route || key.direction != direction || count == 0 {
                continue;
            }
            let passages: Vec<(f64, bool)> = history
                .passages()
                .map(|passage| (passage.position.metres(), passage.outcome.is_failure()))
                .collect();
            let end = passages.iter().map(|(metres, _)| metres).sum::<f64>() / count as f64;
            for (metres, _) in &passages {
                (from, to) = (from.min(*metres), to.max(*metres));
            }
            let cell = Cell { name: key.cell.to_string(), end, passages, forecast: forecast(key) };
            carriers.entry(key.carrier.clone()).or_default().push(cell);
        }
        ensure!(!carriers.is_empty(), "no handovers are known of this route and direction");
        for cells in carriers.values_mut() {
            cells.sort_by(|a, b| a.end.total_cmp(&b.end));
        }
        let way = if direction == Direction::Up { "up" } else { "down" };
        let title = format!("route {route}, {way}: {} carriers", carriers.len());
        let (from, to) = ((from / 1_000.0).floor() * 1_000.0, (to / 1_000.0).ceil() * 1_000.0);
        Ok(Self { title, carriers, from, to: to.max(from + 1_000.0) })
    }

    /// As SVG.
    ///
    /// # Errors
    /// The picture cannot be drawn.
    pub(super) fn draw(&self) -> Result<String> {
        let strips = (((self.to - self.from) / STRIP).ceil() as u32).clamp(1, STRIPS_MAX);
        let bands = self.carriers.len() as u32;
        let strip_height = bands * BAND + AXIS;
        let height = TITLE + strips * strip_height;
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
            let drawn = self.draw_on(&area, strips, strip_height);
            drawn.map_err(|error| anyhow!("the picture cannot be drawn: {error}"))?;
        }
        Ok(text)
    }

    fn draw_on(&self, area: &Area<'_>, strips: u32, strip_height: u32) -> Drawn {
        area.fill(&WHITE)?;
        let style = ("sans-serif", 16).into_font().color(&BLACK);
        area.draw_text(&self.title, &style, (MARGIN as i32, 8))?;
        let metres = ((self.to - self.from) / f64::from(strips)).max(1_000.0);
        for strip in 0..strips {
            let from = self.from + metres * f64::from(strip);
            let top = (TITLE + strip * strip_height) as i32;
            let scale = Scale { from, to: from + metres };
            for (band, (carrier, cells)) in self.carriers.iter().enumerate() {
                let top = top + band as i32 * BAND as i32;
                draw_band(area, &scale, top, carrier, cells)?;
            }
            draw_axis(area, &scale, top + (strip_height - AXIS) as i32)?;
        }
        area.present()
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>>;

/// From metres to pixels.
struct Scale {
    from: f64,
    to: f64,
}

impl Scale {
    /// Where a place is drawn; none outside the strip.
    fn x(&self, metres: f64) -> Option<i32> {
        (self.from..=self.to).contains(&metres).then(|| self.clamped(metres))
    }

    fn clamped(&self, metres: f64) -> i32 {
        let share = (metres.clamp(self.from, self.to) - self.from) / (self.to - self.from);
        (f64::from(MARGIN) + share * f64::from(WIDTH - 2 * MARGIN)).round() as i32
    }
}

fn draw_band(area: &Area<'_>, scale: &Scale, top: i32, carrier: &str, cells: &[Cell]) -> Drawn {
    let (roof, floor) = (top + NAMES as i32, top + BAND as i32 - 4);
    let label = ("sans-serif", 13).into_font().color(&BLACK);
    area.draw_text(carrier, &label, (4, roof + 8))?;
    let mut begin = f64::NEG_INFINITY;
    for (number, cell) in cells.iter().enumerate() {
        let (left, right) = (scale.clamped(begin), scale.clamped(cell.end));
        if left < right {
            let shade =
                if number % 2 == 0 { RGBColor(238, 238, 228) } else { RGBColor(220, 228, 220) };
            let corners = [(left, roof), (right, floor)];
            area.draw(&Rectangle::new(corners, shade.filled()))?;
            let middle = Pos::new(HPos::Center, VPos::Bottom);
            let style = ("sans-serif", 10).into_font().color(&BLACK.mix(0.6)).pos(middle);
            if right - left > 30 {
                area.draw_text(&cell.name, &style, ((left + right) / 2, roof - 1))?;
            }
        }
        begin = cell.end;
        let count = cell.passages.len().clamp(12, PASSAGES_MAX);
        let step = f64::from(floor - roof) / count as f64;
        for (turn, (metres, failed)) in cell.passages.iter().enumerate() {
            let Some(x) = scale.x(*metres) else { continue };
            let y = roof + (step * turn as f64) as i32;
            let foot = y + step.ceil().max(2.0) as i32;
            let colour = if *failed { RED.mix(1.0) } else { BLACK.mix(0.35) };
            let width = if *failed { 3 } else { 1 };
            let line = PathElement::new([(x, y), (x, foot)], colour.stroke_width(width));
            area.draw(&line)?;
        }
        if let Some(x) = cell.forecast.and_then(|metres| scale.x(metres)) {
            let line = PathElement::new([(x, roof), (x, floor)], BLUE.stroke_width(2));
            area.draw(&line)?;
        }
    }
    Ok(())
}

fn draw_axis(area: &Area<'_>, scale: &Scale, top: i32) -> Drawn {
    let ends = [(MARGIN as i32, top), ((WIDTH - MARGIN) as i32, top)];
    area.draw(&PathElement::new(ends, BLACK))?;
    let middle = Pos::new(HPos::Center, VPos::Top);
    let style = ("sans-serif", 11).into_font().color(&BLACK).pos(middle);
    let step = if scale.to - scale.from > 10_000.0 { 5_000.0 } else { 1_000.0 };
    let mut at = (scale.from / step).ceil() * step;
    while at <= scale.to {
        let x = scale.clamped(at);
        area.draw(&PathElement::new([(x, top), (x, top + 4)], BLACK))?;
        area.draw_text(&format!("{:.0} km", at / 1_000.0), &style, (x, top + 6))?;
        at += step;
    }
    Ok(())
}

/// Sizes in pixels: the picture's width, its margins, a carrier's band, the names above it, the
/// axis below a strip, the title.
const WIDTH: u32 = 1_600;
const MARGIN: u32 = 60;
const BAND: u32 = 90;
const NAMES: u32 = 16;
const AXIS: u32 = 40;
const TITLE: u32 = 36;
/// What a strip shows, in metres; a track longer than all strips is drawn smaller.
const STRIP: f64 = 30_000.0;
const STRIPS_MAX: u32 = 60;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polyrail_model::{CellId, Handover, HandoverOutcome, Position, Speed, TripId};

    use super::*;

    fn cells(ends: &[f64]) -> Vec<(CellKey, CellHistory)> {
        let handover = |cell: usize, trip: u64, metres: f64| Handover {
            trip: TripId(trip),
            sequence: cell as u32,
            at_ms: 0,
            carrier: "a".into(),
            route: RouteId(7),
            direction: Direction::Up,
            position: Position::from_metres(metres),
            speed: Speed::from_metres_per_second(80.0),
            from: CellId(cell as u64),
            to: None,
            rsrp: None,
            outcome: [HandoverOutcome::Success, HandoverOutcome::TypeIII][trip as usize % 2],
            dark: Duration::ZERO,
        };
        let one = |(cell, end): (usize, &f64)| {
            let mut history = CellHistory::default();
            for trip in 0..4 {
                history.add(&handover(cell, trip, end + trip as f64 * 10.0));
            }
            (CellKey::of(&handover(cell, 0, 0.0)), history)
        };
        ends.iter().enumerate().map(one).collect()
    }

    #[test]
    fn what_is_known_stands_in_the_picture() {
        let cells = cells(&[1_000.0, 2_500.0, 4_000.0]);
        let picture = |forecast: Option<f64>| {
            let picture = Picture::new(&cells, RouteId(7), Direction::Up, |_| forecast).unwrap();
            picture.draw().unwrap()
        };
        let without = picture(None);
        assert!(without.starts_with("<svg") && without.contains("route 7, up"));
        // Two failures and two successes of each of three cells.
        let red = |text: &str| text.matches("#FF0000").count();
        let blue = |text: &str| text.matches("#0000FF").count();
        assert_eq!((red(&without), blue(&without)), (6, 0));
        assert_eq!((red(&picture(Some(2_000.0))), blue(&picture(Some(2_000.0)))), (6, 3));
    }

    #[test]
    fn nothing_is_no_picture_and_a_long_track_has_strips() {
        let up = |cells: &[(CellKey, CellHistory)]| {
            Picture::new(cells, RouteId(7), Direction::Up, |_| None)
        };
        assert!(up(&[]).is_err());
        let long = up(&cells(&[1_000.0, 100_000.0])).unwrap().draw().unwrap();
        let short = up(&cells(&[1_000.0])).unwrap().draw().unwrap();
        let height = |text: &str| -> u32 {
            let rest = text.split("height=\"").nth(1).unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        assert_eq!(height(&short), TITLE + BAND + AXIS);
        assert_eq!(height(&long), TITLE + 4 * (BAND + AXIS));
        let down = Picture::new(&cells(&[1.0]), RouteId(7), Direction::Down, |_| None);
        assert!(down.is_err(), "the other way");
    }
}
