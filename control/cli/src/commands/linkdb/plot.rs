//! `polyrail linkdb plot`: draws a track.
//!
//! The track runs from left to right, in strips. Each carrier has a band with its cells in two
//! shades, each up to the mean place of its handovers. A grey tick is a success and a red one a
//! failure, from the oldest trip at the top of the band to the newest at its foot. A blue line is a
//! forecast. With `--html` the same picture becomes a [`page`].

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use polyrail_model::{Direction, NodeRole, RouteId};
use polyrail_predictor::entry::WriterNumber;
use polyrail_predictor::forecast::Forecaster;
use polyrail_predictor::history::PASSAGES_MAX;
use polyrail_predictor::store::Store;
use polyrail_predictor::views::{Views, creator_hash, creator_of};

use super::page::page;
use super::picture::{Cell, Picture, Prediction};
use super::{Plot, create, views};

/// Runs the command.
pub(super) fn run(arguments: &Plot, out: &mut dyn Write) -> Result<bool> {
    let store = arguments.database.open()?;
    let views = views(&store)?;
    let known = views.cells();
    let direction = if arguments.down { Direction::Down } else { Direction::Up };
    let mut counts: BTreeMap<RouteId, u64> = BTreeMap::new();
    for (key, _) in known.iter().filter(|(key, _)| key.direction == direction) {
        *counts.entry(key.route).or_default() += 1;
    }
    let most = || counts.into_iter().max_by_key(|(_, count)| *count).map(|(route, _)| route);
    let route = arguments.route.or_else(most);
    let way = way(direction);
    let route = route.with_context(|| format!("the database knows no cells on the way {way}"))?;
    let (own, name) = viewpoint(&store, &views, route);
    let mut forecaster = Forecaster::default();
    let picture = Picture::new(known.iter(), route, direction, |key| {
        let forecast = forecaster.cell(known, own, key)?;
        let metres = forecast.place(USUAL_SPEED)?.metres();
        Some(Prediction { metres, permille: forecast.permille() })
    })?;
    let text = if arguments.html {
        let (to_train, _) = Views::of_store(&store, NodeRole::Cloud)?;
        let rates = [&views, &to_train].map(|views| views.estimates(own, route, direction));
        page(&picture, &name, views.track(route), &rates.map(Iterator::collect))?
    } else {
        picture.draw()?
    };
    match &arguments.file {
        None => out.write_all(text.as_bytes())?,
        Some(path) => {
            let written = create(path)?.write_all(text.as_bytes());
            written.with_context(|| path.display().to_string())?;
        }
    }
    Ok(true)
}

/// The node for which a plot forecasts, and its name: the file's own. If that has no handovers on
/// the track, as in a cloud's file, it is the train that learned the track.
fn viewpoint(store: &Store, views: &Views, route: RouteId) -> (WriterNumber, String) {
    let mut histories = views.cells().iter().filter(|(key, _)| key.route == route);
    let has_own = histories.any(|(_, cell)| cell.writers().contains(&WriterNumber::OWN));
    let mut logs = store.logs();
    let creator = logs.find(|(_, log)| creator_hash(&log.id.writer) == creator_of(route));
    match creator {
        Some((number, log)) if !has_own => (store.writer(number), log.id.writer.clone()),
        _ => (WriterNumber::OWN, store.own_name().to_owned()),
    }
}

/// The word for a direction.
fn way(direction: Direction) -> &'static str {
    if direction == Direction::Up { "up" } else { "down" }
}

impl Picture {
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
        let Self { route, carriers, .. } = self;
        let title = format!("route {route}, {}: {} carriers", way(self.direction), carriers.len());
        area.draw_text(&title, &style, (MARGIN as i32, 8))?;
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
    for (number, cell) in cells.iter().enumerate() {
        let (left, right) = (scale.clamped(cell.span.0), scale.clamped(cell.span.1));
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
        if let Some(x) = cell.forecast.as_ref().and_then(|one| scale.x(one.metres)) {
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
/// The speed of the train for which forecasts are drawn: 300 km/h, in metres per second.
const USUAL_SPEED: f64 = 83.3;
