//! The runs of data that the cloud sends more than once, and whether the copies win: they arrive
//! before the original.
//!
//! It decodes frames on both sides of the tunnels, independently of the session's own state.

use std::collections::BTreeMap;
use std::time::Instant;

use polyrail_model::{FlowId, Unit};
use polyrail_session::wire::{Decoder, Frame};

/// All runs that the cloud sent.
#[derive(Default)]
pub(super) struct Copies {
    /// By connection: the decoders of arriving bytes.
    decoders: BTreeMap<usize, Decoder>,
    flows: BTreeMap<FlowId, Vec<Sent>>,
}

/// A run on one tunnel.
struct Sent {
    start: u64,
    end: u64,
    fin: bool,
    connection: usize,
    tag: u64,
    arrived: Option<Instant>,
    /// `None` for new data.
    kind: Option<CopyKind>,
}

/// When a copy was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyKind {
    /// Together with the original, on another path.
    Together,
    /// After the end of its flow was sent.
    Tail,
    /// Before that: the receive window was full, or a path returned the run.
    Head,
}

/// The copies of one kind.
#[derive(Clone, Debug, Default)]
pub struct CopyTally {
    /// Bytes sent.
    pub sent: u64,
    /// Bytes of copies and originals that both arrived.
    pub twice: u64,
    /// Bytes of copies that arrived before the original.
    pub won: u64,
    /// By how much the others came later, and the winners earlier (negative), in seconds.
    pub late_s: Vec<f64>,
}

impl CopyTally {
    /// Adds the copies of another trip.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.twice += other.twice;
        self.won += other.won;
        self.late_s.extend(&other.late_s);
    }
}

impl Copies {
    pub(super) fn sent(&mut self, connection: usize, unit: Unit, frames: &[u8]) {
        let Unit::Data { tag } = unit else { return };
        let fed = Decoder::default().feed(frames, |frame| {
            let Frame::Data { flow, sequence: start, marks, data, .. } = frame else { return };
            let list = self.flows.entry(flow).or_default();
            let known = list.iter().rev().find(|it| it.start <= start && start < it.end);
            let kind = known.map(|known| match () {
                () if known.tag == tag => CopyKind::Together,
                () if list.iter().any(|it| it.fin) => CopyKind::Tail,
                () => CopyKind::Head,
            });
            let (end, fin) = (start + data.len() as u64 + u64::from(marks.fin), marks.fin);
            list.push(Sent { start, end, fin, connection, tag, arrived: None, kind });
        });
        assert_eq!(fed, Ok(()), "the session sent invalid frames");
    }

    pub(super) fn arrived(&mut self, now: Instant, connection: usize, bytes: &[u8]) {
        let flows = &mut self.flows;
        let fed = self.decoders.entry(connection).or_default().feed(bytes, |frame| {
            let Frame::Data { flow, sequence, .. } = frame else { return };
            let of = flows.get_mut(&flow).into_iter().flatten();
            let mut of = of.filter(|it| it.connection == connection && it.start == sequence);
            if let Some(it) = of.find(|it| it.arrived.is_none()) {
                it.arrived = Some(now);
            }
        });
        assert_eq!(fed, Ok(()), "invalid frames arrived");
    }

    /// The bytes of new data, and all copies.
    pub(super) fn tally(&self) -> (u64, BTreeMap<CopyKind, CopyTally>) {
        let (mut new, mut tallies) = (0, BTreeMap::<_, CopyTally>::new());
        for list in self.flows.values() {
            for (place, copy) in list.iter().enumerate() {
                let length = copy.end - copy.start;
                let Some(kind) = copy.kind else {
                    new += length;
                    continue;
                };
                let before = list[..place].iter().filter(|it| it.start <= copy.start);
                let before = before.filter(|it| copy.start < it.end);
                let original = before.filter_map(|it| it.arrived).min();
                let tally = tallies.entry(kind).or_default();
                tally.sent += length;
                let Some(at) = copy.arrived else { continue };
                tally.won += if original.is_none_or(|original| at < original) { length } else { 0 };
                let Some(original) = original else { continue };
                tally.twice += length;
                let (late, early) =
                    (at.saturating_duration_since(original), original - at.min(original));
                tally.late_s.push(late.as_secs_f64() - early.as_secs_f64());
            }
        }
        (new, tallies)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn copy_wins_if_it_arrives_before_its_original() {
        let start = Instant::now();
        let sent = |range: [u64; 2], kind, ms: Option<u64>| {
            let arrived = ms.map(|ms| start + Duration::from_millis(ms));
            let [start, end] = range;
            Sent { start, end, fin: false, connection: 0, tag: 0, arrived, kind }
        };
        let tail = Some(CopyKind::Tail);
        let list = vec![
            sent([0, 1_000], None, Some(100)),
            sent([1_000, 1_500], None, None),
            // 30 ms late, 20 ms early, without an original, and withdrawn.
            sent([0, 600], tail, Some(130)),
            sent([600, 1_000], tail, Some(80)),
            sent([1_000, 1_500], tail, Some(90)),
            sent([1_000, 1_500], Some(CopyKind::Head), None),
        ];
        let copies = Copies { flows: [(FlowId(1), list)].into(), ..Copies::default() };
        let (new, tallies) = copies.tally();
        assert_eq!(new, 1_500);
        let tally = &tallies[&CopyKind::Tail];
        assert_eq!((tally.sent, tally.twice, tally.won), (1_500, 1_000, 900));
        assert_eq!(tally.late_s, [0.03, -0.02]);
        let head = &tallies[&CopyKind::Head];
        assert_eq!((head.sent, head.twice, head.won), (500, 0, 0));
    }
}
