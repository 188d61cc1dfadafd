//! QUIC or TLS: the modes that a carrier permits, and what mode `auto` learns about UDP.
//!
//! ```text
//!         3 probes unanswered while TCP was answered, or
//!         UDP looks policed
//!   Open ────────────────────────────────────────────────> Demoted ──retry unanswered──┐
//!     ^                                                      │ ^                       │
//!     └──────────── a retry became a path ───────────────────┘ └── wait doubled <──────┘
//! ```
//!
//! Each demotion waits twice as long as the previous one, unless a QUIC path lasted
//! [`PROVEN_AFTER`] in between.
//!
//! **Blocked.** A carrier without coverage delivers neither UDP nor TCP. So an unanswered QUIC
//! connection counts only if it was a *probe*: started within [`SIGN_FRESH`] of progress on a TLS
//! path, and followed by more progress without a stall in between. Connections of a search (a
//! bring-up, a restart) never count.
//!
//! The search decides when connections are started.

use std::time::{Duration, Instant};

use polyrail_config::Mode;
use polyrail_model::{Bitrate, TunnelMode};

use super::demotion::{Demotion, UNANSWERED_MAX, Why};
use super::notice::EndingKind;

/// Mode `auto`'s knowledge about a carrier.
#[derive(Debug)]
pub(crate) struct Choice {
    wish: Mode,
    demotion: Option<Demotion>,
    /// How long the next demotion waits before its first retry.
    retry_next: Duration,
    /// When QUIC is probed next to a TLS path, and the wait after an unanswered probe.
    probe_at: Option<Instant>,
    probe_gap: Duration,
    probe: Option<Probe>,
    /// A probe was unanswered, and TCP has not made progress since.
    pending: bool,
    unanswered: u32,
    refused: bool,
    /// When TCP last made progress.
    sign_at: Option<Instant>,
    /// Suspicions of policing are ignored until then.
    trusted_until: Option<Instant>,
    /// Since when a QUIC path carries data without suspicion.
    quic_since: Option<Instant>,
}

/// The consequence of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Start one QUIC connection next to the TLS path.
    Probe {
        /// It ends the wait of a demotion.
        retry: bool,
    },
    /// QUIC is demoted.
    Demoted(Demotion),
    /// QUIC looks policed, and the mode permits only QUIC: replace its connection.
    Renew,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    /// TCP made progress shortly before.
    fresh: bool,
    /// TCP made progress since.
    sign: bool,
}

impl Choice {
    pub(crate) fn new(wish: Mode) -> Self {
        Self {
            wish,
            demotion: None,
            retry_next: RETRY_MIN,
            probe_at: None,
            probe_gap: PROBE_GAP,
            probe: None,
            pending: false,
            unanswered: 0,
            refused: false,
            sign_at: None,
            trusted_until: None,
            quic_since: None,
        }
    }

    /// The mode that the operator set.
    pub(crate) fn wish(&self) -> Mode {
        self.wish
    }

    /// Sets the mode and discards all knowledge about the carrier.
    pub(crate) fn set_wish(&mut self, now: Instant, wish: Mode) {
        *self = Self { sign_at: self.sign_at, probe_at: Some(now), ..Self::new(wish) };
    }

    /// Whether paths of the mode may be used.
    pub(crate) fn allows(&self, mode: TunnelMode) -> bool {
        match self.wish {
            Mode::Auto => true,
            Mode::Quic => mode == TunnelMode::Quic,
            Mode::Tls => mode == TunnelMode::Tls,
        }
    }

    /// Whether a QUIC path may replace a TLS path.
    pub(crate) fn prefers_quic(&self) -> bool {
        self.wish == Mode::Auto && self.demotion.is_none()
    }

    pub(crate) fn demotion(&self) -> Option<&Demotion> {
        self.demotion.as_ref()
    }

    /// Why the carrier uses this mode after another one.
    pub(crate) fn reason(&self, mode: TunnelMode, from: Option<TunnelMode>) -> String {
        let wish = self.wish;
        if wish != Mode::Auto {
            return format!("mode {wish} is set");
        }
        let demotion = self.demotion.as_ref();
        if let Some(demotion) = demotion.filter(|_| mode == TunnelMode::Tls) {
            return demotion.why.to_string();
        }
        let text = match mode {
            TunnelMode::Quic if demotion.is_some() => "QUIC was answered before TLS",
            TunnelMode::Tls => "TLS was answered before QUIC",
            TunnelMode::Quic if from == Some(TunnelMode::Tls) => "QUIC is answered again",
            TunnelMode::Quic => "QUIC was answered",
        };
        text.to_owned()
    }

    /// A TLS path is up.
    pub(crate) fn on_tls_path(&mut self, now: Instant) {
        self.quic_since = None;
        self.probe_at = Some(now);
        self.sign(now);
    }

    /// A QUIC path is up. That ends a demotion; a demotion for policing ends only if the path was
    /// `probed`, because winning a race says nothing about rates.
    pub(crate) fn on_quic_path(&mut self, now: Instant, probed: bool) {
        (self.probe, self.probe_at) = (None, None);
        self.calm_down();
        self.probe_gap = PROBE_GAP;
        self.quic_since = Some(now);
        self.demotion.take_if(|demotion| probed || !demotion.why.is_policing());
    }

    /// TCP made progress.
    pub(crate) fn on_sign(&mut self, now: Instant) -> Option<Verdict> {
        self.sign(now);
        if std::mem::take(&mut self.pending) { self.count(now) } else { None }
    }

    /// The TLS path stalled or closed: an unanswered probe says nothing about UDP.
    pub(crate) fn on_disturbed(&mut self) {
        self.pending = false;
        if let Some(probe) = &mut self.probe {
            probe.fresh = false;
        }
    }

    /// The probe failed. An unanswered probe counts if TCP made progress shortly before and makes
    /// progress again; a refusal counts if TCP makes progress. Other failures do not count.
    pub(crate) fn on_probe_failed(&mut self, now: Instant, kind: EndingKind) -> Option<Verdict> {
        let probe = self.probe.take()?;
        let refused = kind == EndingKind::Refused;
        let counts = refused || (kind == EndingKind::Silent && probe.fresh);
        if let Some(mut demotion) = self.demotion {
            if counts {
                demotion.wait = self.next_wait(now);
            }
            demotion.retry_at = now + demotion.wait;
            self.demotion = Some(demotion);
            return Some(Verdict::Demoted(demotion));
        }
        if counts {
            self.probe_at = Some(now + PROBE_GAP);
            self.refused |= refused;
            if probe.sign {
                return self.count(now);
            }
            self.pending = true;
            return None;
        }
        self.probe_at = Some(now + self.probe_gap);
        self.probe_gap = (self.probe_gap * 2).min(RETRY_MIN);
        None
    }

    /// The probe was abandoned for a search, or answered.
    pub(crate) fn on_probe_dropped(&mut self, now: Instant) {
        if self.probe.take().is_none() {
            return;
        }
        match &mut self.demotion {
            Some(demotion) => demotion.retry_at = now + demotion.wait,
            None => self.probe_at = Some(now + PROBE_GAP),
        }
    }

    /// The sender of one direction suspects that UDP is policed to `rate`.
    pub(crate) fn on_policed(&mut self, now: Instant, rate: Bitrate) -> Option<Verdict> {
        let trusted = self.trusted_until.is_some_and(|until| now < until);
        let verdict = match self.wish {
            _ if trusted || self.demotion.is_some() => None,
            Mode::Auto => Some(self.demote(now, Why::Policed { rate })),
            Mode::Quic => {
                self.trusted_until = Some(now + self.next_wait(now));
                Some(Verdict::Renew)
            }
            Mode::Tls => None,
        };
        self.quic_since = self.quic_since.map(|_| now);
        verdict
    }

    /// Lifts the demotion, because no TLS path replaced the demoted QUIC path.
    pub(crate) fn lift_demotion(&mut self, now: Instant) -> bool {
        let Some(demotion) = self.demotion.take() else { return false };
        self.calm_down();
        self.trusted_until = Some(now + demotion.wait);
        true
    }

    /// The carrier's network changed: knowledge about the old one may be wrong.
    pub(crate) fn on_network_change(&mut self, now: Instant) {
        self.calm_down();
        self.retry_next = RETRY_MIN;
        self.trusted_until = None;
        self.probe_gap = PROBE_GAP;
        let soon = now + RETRY_CHANGED;
        if let Some(demotion) = &mut self.demotion {
            demotion.retry_at = demotion.retry_at.min(soon);
            demotion.wait = RETRY_MIN;
        }
        self.probe_at = self.probe_at.map(|at| at.min(soon));
    }

    /// The verdict that is due while the carrier uses a path of this mode.
    pub(crate) fn turn(&mut self, now: Instant, mode: TunnelMode) -> Option<Verdict> {
        if self.next_timeout(mode)? > now {
            return None;
        }
        let fresh = self.sign_at.is_some_and(|at| now.saturating_duration_since(at) <= SIGN_FRESH);
        self.probe = Some(Probe { fresh, sign: false });
        Some(Verdict::Probe { retry: self.demotion.is_some() })
    }

    /// When [`Choice::turn`] is next wanted.
    pub(crate) fn next_timeout(&self, mode: TunnelMode) -> Option<Instant> {
        let probes = self.wish == Mode::Auto && mode == TunnelMode::Tls && self.probe.is_none();
        if probes { self.probe_due() } else { None }
    }

    /// When QUIC is probed next to a TLS path. Without a demotion it waits for progress of TCP, so
    /// that an unanswered probe counts.
    fn probe_due(&self) -> Option<Instant> {
        if let Some(demotion) = &self.demotion {
            return Some(demotion.retry_at);
        }
        let at = self.probe_at?;
        let fresh = self.sign_at.is_some_and(|sign| sign + SIGN_FRESH >= at);
        Some(if fresh { at } else { at + PROBE_PATIENCE })
    }

    fn count(&mut self, now: Instant) -> Option<Verdict> {
        self.unanswered += 1;
        if self.unanswered < UNANSWERED_MAX || self.wish != Mode::Auto || self.demotion.is_some() {
            return None;
        }
        let why = if self.refused { Why::Refused } else { Why::Blocked };
        Some(self.demote(now, why))
    }

    fn demote(&mut self, now: Instant, why: Why) -> Verdict {
        let wait = self.next_wait(now);
        self.calm_down();
        (self.probe, self.quic_since) = (None, None);
        let demotion = Demotion { why, since: now, retry_at: now + wait, wait };
        self.demotion = Some(demotion);
        Verdict::Demoted(demotion)
    }

    /// The wait before QUIC is retried; the next wait is twice as long.
    fn next_wait(&mut self, now: Instant) -> Duration {
        let lasted = |since: Instant| now.saturating_duration_since(since) >= PROVEN_AFTER;
        if self.quic_since.is_some_and(lasted) {
            self.retry_next = RETRY_MIN;
        }
        let wait = self.retry_next;
        self.retry_next = (wait * 2).min(RETRY_MAX);
        wait
    }

    fn sign(&mut self, now: Instant) {
        self.sign_at = Some(now);
        if let Some(probe) = &mut self.probe {
            probe.sign = true;
        }
    }

    fn calm_down(&mut self) {
        (self.pending, self.unanswered, self.refused) = (false, 0, false);
    }
}

/// How long after progress of TCP a probe must start to count.
pub(crate) const SIGN_FRESH: Duration = Duration::from_secs(1);
/// The interval between probes.
const PROBE_GAP: Duration = Duration::from_secs(1);
/// How long a probe waits for progress of TCP; a session pings an idle path every 20 s.
const PROBE_PATIENCE: Duration = Duration::from_secs(30);
/// The first wait of a demotion; it doubles up to the maximum.
const RETRY_MIN: Duration = Duration::from_secs(30);
const RETRY_MAX: Duration = Duration::from_secs(600);
/// The wait after the carrier's network changed.
const RETRY_CHANGED: Duration = Duration::from_secs(5);
/// A QUIC path that lasted this long resets the waits.
const PROVEN_AFTER: Duration = Duration::from_secs(60);
