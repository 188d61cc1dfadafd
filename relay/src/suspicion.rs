//! Whether the network polices a tunnel: drops packets above some rate instead of queueing them.
//!
//! Carriers were seen to police UDP to 1 Mbit/s (`papers/003` 5.1; POLYCORN 5). A policer is a
//! token bucket: it drops each packet that finds no token. So packets are lost at a steady rate
//! while no queue builds up (Flach et al., "An Internet-Wide Analysis of Traffic Policing", SIGCOMM
//! 2016). [`Suspicion`] looks for exactly that in a tunnel's samples. The gateway then moves the
//! carrier to TLS and retries QUIC later, so a false alarm costs little and a missed policer a lot.
//!
//! It judges the last 1.6 to 3.2 s in which the path was the limit, not the offered load, in pieces
//! of [`PIECE`]. The tunnel looks policed if, for any such window,
//! - as many packets are lost as are sent in one piece on average (6 % in 1.6 s, 3 % in 3.2 s), in
//!   at least [`LOSSY_MIN`] pieces and in both halves of the window,
//! - the median of the smoothed round-trip times is at most 1.25 times the least one plus
//!   [`QUEUE`],
//! - the acknowledged rates of the window's quarters differ by at most a factor of two. A blackout
//!   is not policing: it leaves a quarter empty.
//!
//! Heavy random loss on a path that is too fast to build a queue looks the same. A policer that
//! queues (a shaper) is not detected; TCP fares no better there.

use std::collections::VecDeque;
use std::time::Duration;

use polyrail_model::{Bitrate, LinkSample};

#[cfg(test)]
mod tests;

/// Watches one tunnel. Feed it every [`LinkSample`] of the tunnel, in order.
#[derive(Debug, Default)]
pub struct Suspicion {
    last: Option<LinkSample>,
    /// The newest last; at most [`WINDOW_MAX`].
    pieces: VecDeque<Piece>,
    open: Piece,
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

impl Suspicion {
    /// Takes a sample. Returns the rate that passes when the path looks policed, and then starts
    /// over: while the path stays policed, that is once a window.
    pub fn on_sample(&mut self, sample: &LinkSample) -> Option<Bitrate> {
        let before = self.last.replace(*sample)?;
        let time = sample.at.saturating_duration_since(before.at);
        if time >= PAUSE {
            self.pieces.clear();
        }
        if time >= PAUSE || !is_busy(sample) || !is_busy(&before) {
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
        if self.pieces.len() >= WINDOW_MAX {
            self.pieces.pop_front();
        }
        self.pieces.push_back(std::mem::take(&mut self.open));
        let pieces = &*self.pieces.make_contiguous();
        let mut windows = (WINDOW_MIN..=pieces.len()).map(|count| &pieces[pieces.len() - count..]);
        let rate = windows.find_map(|window| policed_rate(window, sample.rtt_min))?;
        self.pieces.clear();
        Some(rate)
    }
}

/// Whether the path is the limit, not the offered load.
fn is_busy(sample: &LinkSample) -> bool {
    let full = sample.in_flight.0 * 2 >= sample.window.0;
    let sends = sample.in_flight.0 > 0 || sample.unsent.0 > 0;
    sends && (sample.unsent.0 > 0 || full || !sample.application_limited)
}

/// The rate of the newer half if the pieces look policed.
fn policed_rate(pieces: &[Piece], rtt_min: Duration) -> Option<Bitrate> {
    let (older, newer) = pieces.split_at(pieces.len() / 2);
    let lossy = |pieces: &[Piece]| pieces.iter().filter(|piece| piece.lost > 0).count();
    let sum = |count: fn(&Piece) -> u64| pieces.iter().map(count).sum::<u64>();
    let lost = sum(|piece| piece.lost) * pieces.len() as u64;
    let loses = lost >= sum(|piece| piece.sent)
        && lossy(older).min(lossy(newer)) > 0
        && lossy(pieces) >= LOSSY_MIN;
    (loses && is_steady(pieces) && !is_queueing(pieces, rtt_min)).then(|| rate(newer))
}

fn is_queueing(pieces: &[Piece], rtt_min: Duration) -> bool {
    let mut times: Vec<Duration> = pieces.iter().map(|piece| piece.srtt).collect();
    times.sort_unstable();
    times[times.len() / 2] > rtt_min * 5 / 4 + QUEUE
}

fn is_steady(pieces: &[Piece]) -> bool {
    let quarters = || pieces.chunks(pieces.len().div_ceil(4)).map(|quarter| rate(quarter).as_bps());
    quarters().max() <= quarters().min().map(|least| least.saturating_mul(2))
}

fn rate(pieces: &[Piece]) -> Bitrate {
    let (acked, time) = pieces
        .iter()
        .fold((0, Duration::ZERO), |(acked, time), piece| (acked + piece.acked, time + piece.time));
    Bitrate::from_bytes_per_second((acked as f64 / time.as_secs_f64()) as u64)
}

/// Short next to the windows, long next to the interval between samples.
const PIECE: Duration = Duration::from_millis(100);
/// Pieces of the shortest and the longest window. A shorter window mistakes the end of slow start
/// for policing; a longer one leaves too little of the 5 s in which the carrier is to reach TLS.
const WINDOW_MIN: usize = 16;
const WINDOW_MAX: usize = 32;
/// Losses in fewer pieces are one event.
const LOSSY_MIN: usize = 3;
/// A shorter queue does not count.
const QUEUE: Duration = Duration::from_millis(5);
/// After so long without a sample, earlier samples do not count.
const PAUSE: Duration = Duration::from_secs(2);
