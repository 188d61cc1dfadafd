//! `polyrail linkdb plot`: draws a track.
//!
//! The track runs from left to right, in strips. Each carrier has a band with its cells in two
//! shades, each up to the mean place of its handovers. A grey tick is a success and a red one a
//! failure, from the oldest trip at the top of the band to the newest at its foot. A blue line is a
//! forecast.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, ensure};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use polyrail_model::{Direction, RouteId};
use polyrail_predictor::history::{CellHistory, CellKey, PASSAGES_MAX};

/// One direction of one track.
pub(super) struct Picture {
    title: String,
    carriers: BTreeMap<String, Vec<Cell>>,
    from: f64,
    to: f64,
}

/// A cell of the picture.
struct Cell {
    name: String,
    /// The mean place of its handovers.
    end: f64,
    /// The metres of each handover, and whether it failed.
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
        ensure!(!carriers.is_empty(), "no handovers are known on this route and direction");
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
    /// The pixel of a place; none outside the strip.
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
/// The length of a strip in metres; a track longer than all strips is drawn to a smaller scale.
const STRIP: f64 = 30_000.0;
const STRIPS_MAX: u32 = 60;
