//! Paths, runs and notes for the tables of the rules' tests.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use polyrail_model::{Bytes, FlowId, PathId};

use crate::{Chain, Decision, Input, Note, OutView, PathView, SEGMENT, SegmentView};

/// The time at which all tables begin.
pub fn base() -> Instant {
    static BASE: OnceLock<Instant> = OnceLock::new();
    #[allow(clippy::disallowed_methods)] // the base of the tables' clock
    *BASE.get_or_init(Instant::now)
}

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A path with this id and round-trip time, and room.
pub fn path(id: u64, srtt_ms: u64) -> PathView {
    PathView {
        id: PathId(id),
        srtt: ms(srtt_ms),
        room: Bytes(16_384),
        carrier: id as u32,
        rtt_min: ms(srtt_ms),
        window: Bytes(16_384),
        ..PathView::default()
    }
}

pub fn full(path: PathView) -> PathView {
    PathView { room: Bytes::ZERO, ..path }
}

pub fn stalled(path: PathView) -> PathView {
    PathView { stalled: true, ..path }
}

pub fn backup(path: PathView) -> PathView {
    PathView { backup: true, ..path }
}

/// A run of one segment, in flight since [`base`] on these paths.
pub fn run(carried: &[usize]) -> OutView {
    let mask = carried.iter().copied().collect();
    OutView {
        flow: FlowId(1),
        offset: 0,
        length: Bytes(SEGMENT),
        ahead: Bytes::ZERO,
        sent_at: base(),
        carried: mask,
        expected: mask,
        tail: false,
        blocked: false,
    }
}

/// New data of flow 1 was sent.
pub fn sent(path: PathId, bytes: u64) -> Note {
    Note::Sent { path, flow: FlowId(1), offset: 0, bytes, copy: false }
}

/// All bytes of flow 1 before `cumulative` were acknowledged, `bytes` of them by this path.
pub fn acked(path: PathId, bytes: u64, cumulative: u64) -> Note {
    Note::Acked { path, sure: true, flow: FlowId(1), offset: 0, bytes, cumulative }
}

/// The path of the run; `None` if it waits.
pub fn chosen(decision: Decision) -> Option<usize> {
    targets(decision).first().copied()
}

/// The path of the run and those of its copies; empty if it waits.
pub fn targets(decision: Decision) -> Vec<usize> {
    match decision {
        Decision::Send { primary, copies, .. } => {
            [primary].into_iter().chain(copies.iter()).collect()
        }
        Decision::Wait { .. } => Vec::new(),
    }
}

/// Decides for a segment and sends it and its copies, `bytes` each; returns their paths.
pub fn send(
    chain: &mut Chain,
    paths: &[PathView],
    segment: SegmentView,
    bytes: u64,
    now: Instant,
) -> Vec<usize> {
    let on = targets(chain.decide(&Input { paths, segment, now }));
    for (place, &index) in on.iter().enumerate() {
        let (path, flow, copy) = (paths[index].id, segment.flow, place > 0);
        chain.note(&Note::Sent { path, flow, offset: 0, bytes, copy }, now);
    }
    on
}
