//! Does the network drop what goes faster than some rate, instead of queueing it?
//!
//! Carriers were seen to police UDP to 1 Mbit/s (`papers/003` 5.1; POLYCORN 5). A policer is a
//! token bucket: what finds no token is dropped, so there is loss where faster sending would find
//! a queue, and none where slower sending leaves tokens over (Flach et al., "An Internet-Wide
//! Analysis of Traffic Policing", SIGCOMM 2016). [`Suspicion`] looks for that in the samples of one
//! tunnel. It only suspects: whether TCP fares better on the same carrier shows in a trial, which
//! costs a move of the path. To miss a policer costs passengers minutes. So it is quick to suspect.
//!
//! What is judged is the sending time in which the path was the limit, in pieces of [`PIECE`]:
//!
//! | rule | over | loss | without a queue | steady rate | loss grows with the rate |
//! |---|---|---|---|---|---|
//! | heavy | 1 s | 10 % in each half | against the least delay of 6 s | within 2 times | no |
//! | grows | 2 s | 2 % | against `rtt_min` | within 2 times | yes |
//! | lasts | 6 s | 2 % | against `rtt_min` | within 2 times | no |
//!
//! *Without a queue*: the median of the smoothed round-trip times is at most 1.25 times the least
//! one and 5 ms. *Grows*: the half of the pieces in which more was sent lost at least twice the
//! share that the other half lost. Losses must be spread over at least three pieces, some of them
//! in the older half of the time: the rate that is named, that of the newer half, must not be one
//! from before the policing.
//!
//! What is not a policer and looks like one: random loss of 2 % and more on a path so fast that no
//! queue builds up, and a queue of under 5 ms. Both end in a trial without result, which the
//! gateway repeats less and less often. What is one and is not seen: a policer that queues (a
//! shaper). TCP fares no better there.
//!
//! Silence (nothing acknowledged for [`SILENCE`], or three timeouts) is no policing: all that was
//! gathered is forgotten, with the losses that are found at its end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, LinkSample};

#[cfg(test)]
mod tests;

/// Watches one tunnel. Feed it every [`LinkSample`] of the tunnel, in order.
#[derive(Debug, Default)]
pub struct Suspicion {
    last: Option<LinkSample>,
    /// When acknowledged bytes last grew.
    grown_at: Option<Instant>,
    /// The newest last; at most [`PIECES_MAX`].
    pieces: VecDeque<Piece>,
    open: Piece,
    told_at: Option<Instant>,
}

/// [`PIECE`] of sending.
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    time: Duration,
    acked: u64,
    sent: u64,
    lost: u64,
    srtt: Duration,
}

/// What pieces have in common.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    time: Duration,
    acked: u64,
    sent: u64,
    lost: u64,
    /// Pieces in which something was lost.
    lossy: usize,
}

impl Suspicion {
    /// Takes a sample; answers the rate that gets through when the path looks policed. While it
    /// does, that is said again every 5 s.
    pub fn on_sample(&mut self, sample: &LinkSample) -> Option<Bitrate> {
        let before = self.last.replace(*sample)?;
        let time = sample.at.saturating_duration_since(before.at);
        let grown_before = self.grown_at.unwrap_or(before.at);
        if sample.acked > before.acked || sample.in_flight.0 == 0 {
            self.grown_at = Some(sample.at);
        }
        let silent = sample.at.saturating_duration_since(grown_before) >= SILENCE;
        if sample.timeouts >= TIMEOUTS || (silent && before.in_flight.0 > 0) || time >= PAUSE {
            self.pieces.clear();
            self.open = Piece::default();
            return None;
        }
        if !is_busy(sample) || !is_busy(&before) {
            return None;
        }
        self.open.time += time;
        self.open.acked += sample.acked.0.saturating_sub(before.acked.0);
        self.open.sent += sample.sent_packets.saturating_sub(before.sent_packets);
        self.open.lost += sample.lost_packets.saturating_sub(before.lost_packets);
        self.open.srtt = sample.srtt;
        if self.open.time < PIECE {
            return None;
        }
        if self.pieces.len() >= PIECES_MAX {
            self.pieces.pop_front();
        }
        self.pieces.push_back(std::mem::take(&mut self.open));
        let rate = self.judge(sample)?;
        let due = |at: Instant| sample.at.saturating_duration_since(at) >= REPEAT;
        if !self.told_at.is_none_or(due) {
            return None;
        }
        self.told_at = Some(sample.at);
        Some(rate)
    }

    fn judge(&mut self, sample: &LinkSample) -> Option<Bitrate> {
        let pieces = &*self.pieces.make_contiguous();
        let lowest = pieces.iter().map(|piece| piece.srtt).min()?;
        if let Some(recent) = newest(pieces, PIECES_HEAVY)
            && is_heavy(recent)
            && !is_queueing(recent, lowest)
            && is_steady(recent, 2)
        {
            return Some(newer_rate(recent));
        }
        // What was sent comes back as acknowledged or lost a round trip later.
        let lag =
            usize::try_from(sample.srtt.as_millis() / PIECE.as_millis()).unwrap_or(usize::MAX);
        for (count, must_grow) in [(PIECES_GROWS, true), (PIECES_MAX, false)] {
            let Some(recent) = newest(pieces, count) else { continue };
            let sum = Sum::of(recent);
            let lossy = sum.lost >= LOST_MIN && sum.loss() >= LOSS && sum.lossy >= LOSSY_MIN;
            if lossy
                && Sum::of(halves(recent)[0]).lossy > 0
                && !is_queueing(recent, sample.rtt_min)
                && is_steady(recent, 4)
                && (!must_grow || grows(pieces, count, lag))
            {
                return Some(newer_rate(recent));
            }
        }
        None
    }
}

impl Sum {
    fn of(pieces: &[Piece]) -> Self {
        pieces.iter().fold(Self::default(), |sum, piece| Self {
            time: sum.time + piece.time,
            acked: sum.acked + piece.acked,
            sent: sum.sent + piece.sent,
            lost: sum.lost + piece.lost,
            lossy: sum.lossy + usize::from(piece.lost > 0),
        })
    }

    fn loss(&self) -> f64 {
        self.lost as f64 / self.sent.max(self.lost).max(1) as f64
    }

    fn rate(&self) -> Bitrate {
        let seconds = self.time.as_secs_f64().max(f64::EPSILON);
        Bitrate::from_bytes_per_second((self.acked as f64 / seconds) as u64)
    }
}

/// Whether the path is the limit, not what is offered. An idle path cannot be judged.
fn is_busy(sample: &LinkSample) -> bool {
    let full = sample.in_flight.0 * 2 >= sample.window.0;
    let is_out = sample.in_flight.0 > 0 || sample.unsent.0 > 0;
    is_out && (sample.unsent.0 > 0 || full || !sample.application_limited)
}

fn newest(pieces: &[Piece], count: usize) -> Option<&[Piece]> {
    pieces.len().checked_sub(count).map(|begin| &pieces[begin..])
}

fn halves(pieces: &[Piece]) -> [&[Piece]; 2] {
    let (older, newer) = pieces.split_at(pieces.len() / 2);
    [older, newer]
}

fn is_heavy(pieces: &[Piece]) -> bool {
    halves(pieces).iter().all(|half| {
        let sum = Sum::of(half);
        sum.loss() >= LOSS_HEAVY && sum.lossy >= LOSSY_MIN && sum.acked > 0
    })
}

fn is_queueing(pieces: &[Piece], least: Duration) -> bool {
    let mut times: Vec<Duration> = pieces.iter().map(|piece| piece.srtt).collect();
    times.sort_unstable();
    times[times.len() / 2] > least * 5 / 4 + QUEUE
}

fn newer_rate(pieces: &[Piece]) -> Bitrate {
    Sum::of(halves(pieces)[1]).rate()
}

/// Whether the rates of so many parts are within twice each other.
fn is_steady(pieces: &[Piece], parts: usize) -> bool {
    let rates = pieces.chunks(pieces.len().div_ceil(parts)).map(|part| Sum::of(part).rate());
    let (least, most) = rates.fold((u64::MAX, 0), |(least, most), rate| {
        (least.min(rate.as_bps()), most.max(rate.as_bps()))
    });
    most <= least.saturating_mul(2)
}

/// Whether the newest `count` pieces lost more where more had been sent, `lag` pieces before.
fn grows(pieces: &[Piece], count: usize, lag: usize) -> bool {
    let begin = (pieces.len() - count).max(lag);
    let mut pairs: Vec<(u64, u64)> =
        (begin..pieces.len()).map(|at| (pieces[at - lag].sent, pieces[at].lost)).collect();
    pairs.sort_unstable_by_key(|(sent, _)| *sent);
    let (slow, fast) = pairs.split_at(pairs.len() / 2);
    let loss = |pairs: &[(u64, u64)]| {
        let sum = pairs.iter().fold((0, 0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        sum.1 as f64 / sum.0.max(1) as f64
    };
    loss(fast) >= 2.0 * loss(slow)
}

/// What pieces are made of: short against two seconds, long against the interval of samples.
const PIECE: Duration = Duration::from_millis(100);
/// The pieces of each rule.
const PIECES_HEAVY: usize = 10;
const PIECES_GROWS: usize = 20;
const PIECES_MAX: usize = 60;
/// Shares of packets that are lost. 2 % is what bbr2 takes for congestion.
const LOSS: f64 = 0.02;
const LOSS_HEAVY: f64 = 0.1;
/// Fewer lost packets say nothing.
const LOST_MIN: u64 = 4;
/// Losses in fewer pieces are one event.
const LOSSY_MIN: usize = 3;
/// A queue of this is none, beside a quarter of the least round-trip time.
const QUEUE: Duration = Duration::from_millis(5);
/// So long without acknowledgement, with data out, is an outage.
const SILENCE: Duration = Duration::from_millis(400);
const TIMEOUTS: u32 = 3;
/// So long without a sample, the path was idle; what came before counts no more.
const PAUSE: Duration = Duration::from_secs(2);
/// How long until it is said again.
const REPEAT: Duration = Duration::from_secs(5);
