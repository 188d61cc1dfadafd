//! Readings of a contender while its load runs: the carriers' counters, forecasts and events.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use polyrail_emulator::control::Client;
use polyrail_emulator::record::{CarrierRun, CarrierSample, Event, Machine, SAMPLE_S};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::load::Load;
use super::stage::Stage;
use crate::admin;
use crate::carrier::CONTROL_SOCKET;

/// The interval of questions for forecasts.
const FORECASTS_EVERY: Duration = Duration::from_millis(500);

/// Collects the readings of one run.
pub(super) struct Sampler {
    control: Client,
    admin: Option<PathBuf>,
    epoch: Instant,
    /// The epoch by the clock of events.
    epoch_time: OffsetDateTime,
    pub(super) carriers: Vec<CarrierRun>,
    pub(super) events: Vec<Event>,
    /// Carriers with a forecast now.
    foreseen: Vec<String>,
}

impl Sampler {
    pub(super) fn new(stage: &Stage) -> Result<Sampler> {
        let epoch = stage.epoch()?;
        Ok(Sampler {
            control: Client::connect(stage.lab().folder().join(CONTROL_SOCKET))?,
            admin: stage.admin(),
            epoch,
            epoch_time: OffsetDateTime::now_utc() - epoch.elapsed(),
            carriers: Vec::new(),
            events: Vec::new(),
            foreseen: Vec::new(),
        })
    }

    /// Reads from `begin` on until the load is over. Returns how late the emulator's packets left,
    /// in milliseconds: 99th and 99.9th percentile of the worst link.
    pub(super) fn watch(
        &mut self,
        load: &Load,
        begin: Instant,
        forecasts: bool,
    ) -> Result<Machine> {
        let before = loop {
            let read = self.read()?;
            if Instant::now() >= begin {
                break read;
            }
            self.pause(forecasts)?;
        };
        while !load.is_over() {
            self.read()?;
            self.pause(forecasts)?;
        }
        let after = self.read()?;
        let mut machine = Machine::default();
        for (carrier, (before, after)) in self.carriers.iter_mut().zip(before.iter().zip(&after)) {
            carrier.offered = [0, 1].map(|way| after.offered[way] - before.offered[way]);
            machine.emulator_p99_ms = machine.emulator_p99_ms.max(after.late_ms[0]);
            machine.emulator_p999_ms = machine.emulator_p999_ms.max(after.late_ms[1]);
        }
        Ok(machine)
    }

    /// Sleeps until the next reading.
    fn pause(&mut self, forecasts: bool) -> Result<()> {
        let every = (FORECASTS_EVERY.as_secs_f64() / SAMPLE_S).round() as u64;
        let number = (self.epoch.elapsed().as_secs_f64() / SAMPLE_S) as u64;
        if forecasts && number.is_multiple_of(every) {
            self.read_forecasts()?;
        }
        let next = Duration::from_secs_f64((number + 1) as f64 * SAMPLE_S);
        super::flow::sleep_until(self.epoch + next);
        Ok(())
    }

    fn read(&mut self) -> Result<Vec<Reading>> {
        let at_s = self.epoch.elapsed().as_secs_f64();
        let answer = self.control.command("stats")?;
        let links = answer.get("links").and_then(Value::as_array).context("no links")?;
        let readings = links.iter().map(Reading::of).collect::<Result<Vec<_>>>()?;
        if self.carriers.is_empty() {
            let empty = |one: &Reading| CarrierRun {
                name: one.name.clone(),
                offered: [0; 2],
                samples: Vec::new(),
            };
            self.carriers = readings.iter().map(empty).collect();
        }
        for (carrier, reading) in self.carriers.iter_mut().zip(&readings) {
            carrier.samples.push(CarrierSample { at_s, ..reading.sample });
        }
        Ok(readings)
    }

    /// Notes when the gateway's forecast of a carrier begins and ends.
    fn read_forecasts(&mut self) -> Result<()> {
        let Some(admin) = &self.admin else { return Ok(()) };
        let at_s = self.epoch.elapsed().as_secs_f64();
        let state = admin::get(admin, "/v1/linkdb")?;
        let trips = state.get("trips").and_then(Value::as_array).context("no trips")?;
        let carriers = trips.iter().filter_map(|trip| trip.get("carriers")?.as_array()).flatten();
        let now: Vec<String> = carriers
            .filter(|one| one["permille"].as_u64().is_some())
            .filter_map(|one| Some(one["carrier"].as_str()?.to_owned()))
            .collect();
        let mut note = |kind: &str, carrier: &String| {
            let (kind, carrier) = (kind.to_owned(), Some(carrier.clone()));
            self.events.push(Event { at_s, kind, carrier });
        };
        now.iter()
            .filter(|one| !self.foreseen.contains(one))
            .for_each(|one| note("forecast_begin", one));
        self.foreseen
            .iter()
            .filter(|one| !now.contains(one))
            .for_each(|one| note("forecast_end", one));
        self.foreseen = now;
        Ok(())
    }

    /// Adds the events that the gateway has stored.
    pub(super) fn add_events(&mut self, events: &[Value]) -> Result<()> {
        for event in events {
            let at = event["at"].as_str().context("an event without a time")?;
            let at = OffsetDateTime::parse(at, &Rfc3339)?;
            self.events.push(Event {
                at_s: (at - self.epoch_time).as_seconds_f64(),
                kind: event["event"].as_str().context("an event's name")?.to_owned(),
                carrier: event["path"].as_str().map(str::to_owned),
            });
        }
        self.events.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        Ok(())
    }
}

/// The counters of one link.
struct Reading {
    name: String,
    sample: CarrierSample,
    /// Bytes offered, down and up.
    offered: [u64; 2],
    /// How late packets left: 99th and 99.9th percentile of both directions.
    late_ms: [f64; 2],
}

impl Reading {
    fn of(link: &Value) -> Result<Reading> {
        let bytes = |way: &str, what: &str| {
            let value = link.pointer(&format!("/{way}/{what}/bytes")).and_then(Value::as_u64);
            value.with_context(|| format!("no {way}.{what}"))
        };
        let late = |what: &str| -> Result<f64> {
            let of = |way: &str| link.pointer(&format!("/{way}/timing/{what}"))?.as_f64();
            Ok(of("up").zip(of("down")).map(|(up, down)| up.max(down)).context("no timing")? / 1e3)
        };
        let name = link.get("link").and_then(Value::as_str).context("a link without a name")?;
        let sample = CarrierSample {
            at_s: 0.0,
            down: bytes("down", "delivered")?,
            up: bytes("up", "delivered")?,
        };
        let offered = [bytes("down", "offered")?, bytes("up", "offered")?];
        Ok(Reading {
            name: name.to_owned(),
            sample,
            offered,
            late_ms: [late("p99_us")?, late("p999_us")?],
        })
    }
}
