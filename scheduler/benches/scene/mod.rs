//! Paths and segments on which decisions are measured: every figure that a rule may ask for is
//! known, forecasts included.

#![allow(dead_code)] // each test and benchmark uses its part

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, FlowId, PathId};
use polyrail_scheduler::{
    Chain, Decision, Forecast, Input, LookAhead, Note, PathSet, PathView, SEGMENT, SegmentView,
};

/// What the rules have to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// The middle of flows; predicted failures are far away.
    Calm,
    /// The first path is about to fail.
    Alarm,
    /// The ends of flows; all paths but the last are full.
    Tail,
}

/// All of them, by name.
pub const SCENES: [(&str, Scene); 3] =
    [("calm", Scene::Calm), ("alarm", Scene::Alarm), ("tail", Scene::Tail)];

/// So many paths, each slower than the one before.
pub fn paths(count: u64) -> Vec<PathView> {
    let path = |id: u64| PathView {
        id: PathId(id),
        carrier: id as u32,
        srtt: ms(40 + 15 * id),
        rtt_min: ms(30 + 15 * id),
        rtt_var: ms(5),
        owd: Some(ms(15 + 7 * id)),
        owd_error: Duration::from_micros(100),
        queued: Some(ms(5)),
        unqueued: Some(ms(45 + 15 * id)),
        room: Bytes(16_384),
        outstanding: Bytes(30_000),
        window: Bytes(60_000),
        in_flight: Bytes(28_000),
        unsent: Bytes(2_000),
        slow_start: false,
        timeouts: 0,
        rate: Some(Bitrate::from_mbps(12.0 - id as f64)),
        capacity: Some(Bitrate::from_mbps(10.0 - id as f64)),
        busy_rate: Some(Bitrate::from_mbps(11.0 - id as f64)),
        stalled: false,
        quiet: Duration::ZERO,
        backup: false,
        secondary: false,
        metered: false,
        calls: false,
        forecast: Some(Forecast {
            fails_in: ms(9_000),
            ends_in: ms(9_000),
            uncertainty: ms(240),
            permille: 60,
        }),
        look_ahead: LookAhead::default(),
    };
    (0..count).map(path).collect()
}

/// A chain that decides and receives notes about its decisions.
pub struct Work {
    chain: Chain,
    paths: Vec<PathView>,
    scene: Scene,
    flows: u64,
    now: Instant,
    turn: u64,
}

impl Work {
    /// The chain on so many paths, with segments of so many flows.
    pub fn new(chain: Chain, count: u64, scene: Scene, flows: u64) -> Self {
        let mut paths = paths(count);
        match scene {
            Scene::Calm => {}
            Scene::Alarm => {
                let forecast = Forecast {
                    fails_in: ms(100),
                    ends_in: ms(100),
                    uncertainty: ms(240),
                    permille: 600,
                };
                paths[0].forecast = Some(forecast);
            }
            Scene::Tail => {
                let last = paths.len() - 1;
                paths[..last].iter_mut().for_each(|path| path.room = Bytes::ZERO);
            }
        }
        #[allow(clippy::disallowed_methods)] // a base for the clock
        let now = Instant::now();
        Self { chain, paths, scene, flows, now, turn: 0 }
    }

    /// The next decision, of this flow or of the next one.
    pub fn decide(&mut self, flow: Option<FlowId>) -> Decision {
        self.turn += 1;
        self.now += Duration::from_micros(100);
        let segment = SegmentView {
            flow: flow.unwrap_or(FlowId(self.turn % self.flows)),
            offset: self.turn / self.flows * SEGMENT,
            unsent: Bytes(20_000),
            backlog: Bytes(90_000),
            window: Bytes(200_000),
            remaining: Bytes(20_000),
            carried: PathSet::EMPTY,
            tail: self.scene == Scene::Tail,
            reinjected: false,
            realtime: false,
            recovery: Duration::from_secs(1),
        };
        self.chain.decide(&Input { paths: &self.paths, segment, now: self.now })
    }

    /// The chain hears that all this went out, and that it arrived.
    pub fn note(&mut self, decision: Decision) {
        let Decision::Send { primary, copies, run_max, .. } = decision else { return };
        let (flow, offset) = (FlowId(self.turn % self.flows), self.turn / self.flows * SEGMENT);
        let mut on = copies;
        on.insert(primary);
        for path in on.iter() {
            let (id, copy) = (self.paths[path].id, path != primary);
            let sent = Note::Sent { path: id, flow, offset, bytes: run_max, copy };
            self.chain.note(&sent, self.now);
        }
        let path = self.paths[primary].id;
        let cumulative = offset + SEGMENT;
        let acked = Note::Acked { path, sure: true, flow, offset, bytes: SEGMENT, cumulative };
        self.chain.note(&acked, self.now);
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
