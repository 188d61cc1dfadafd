//! QUIC or TLS: what a carrier's mode permits, and what mode `auto` learns about UDP.
//!
//! ```text
//!            3 probes unanswered while TCP was answered
//!   Open ───────────────────────────────────────────────> Demoted ──retry unanswered──┐
//!    │ ^                                                    ^ │ ^                      │
//!    │ └──────────── a retry became a path ─────────────────┼─┘ └── wait doubled <─────┘
//!    │ looks policed                                        │
//!    └─────────────> Trial over TLS ── at least twice the rate
//!           ^             │
//!           └─────────────┘ less: back to QUIC, and no trial for a time
//! ```
//!
//! **Blocked.** A carrier without coverage silences UDP and TCP alike. So an unanswered QUIC
//! connection counts only when it was a *probe*: begun while a TLS path was making progress, within
//! [`SIGN_FRESH`] of a sign of life of TCP there, and followed by another sign of life without a
//! stall in between. Connections of a search (a bring-up, a restart) never count.
//!
//! What is not here: when connections are begun (the search), and what they cost.

use std::time::{Duration, Instant};

use polyrail_config::Mode;
use polyrail_model::{Bitrate, TunnelMode};

use super::attempt::{Both, Way};
use super::demotion::{Demotion, UNANSWERED_MAX, Why};
use super::notice::EndingKind;

/// What mode `auto` knows of a carrier.
#[derive(Debug)]
pub(crate) struct Choice {
    wish: Mode,
    demotion: Option<Demotion>,
    /// How long the next demotion lasts until its first retry.
    retry_next: Duration,
    /// When QUIC is probed beside a TLS path, and how long after an unanswered probe.
    probe_at: Option<Instant>,
    probe_gap: Duration,
    probe: Option<Probe>,
    /// A probe was unanswered, and TCP has not yet shown that the carrier lives.
    pending: bool,
    unanswered: u32,
    refused: bool,
    /// When TCP last showed that the carrier lives.
    sign_at: Option<Instant>,
    trial: Option<Trial>,
    /// Until when no trial is made, and how long that was.
    no_trial: Option<(Instant, Duration)>,
    trial_gap: Duration,
    /// A QUIC path that came back after the carrier had been policed.
    relapse: Option<Relapse>,
    quic_since: Option<Instant>,
}

/// What the carrier runs over now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    pub(crate) mode: TunnelMode,
    pub(crate) srtt: Duration,
    /// The bytes that it moved each way.
    pub(crate) total: Both<u64>,
    /// The same a second, over the last [`MEASURE`].
    pub(crate) rates: Both<Bitrate>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Begin one QUIC connection beside the TLS path.
    Probe {
        /// It ends a demotion's wait.
        retry: bool,
    },
    /// QUIC is left alone from now on.
    Demoted(Demotion),
    /// The trial over TLS showed no gain: go back to QUIC.
    Back { pinned: Bitrate, tls: Bitrate },
    /// No TLS path came up for the trial, when UDP looked policed to this rate.
    TrialFailed { pinned: Bitrate },
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    /// TCP had shown life shortly before.
    fresh: bool,
    /// It has shown life since.
    sign: bool,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    pinned: Bitrate,
    begun: Instant,
    /// The way that looks policed; the other one says nothing.
    way: Way,
    /// Since when a TLS path carries.
    carried: Option<Instant>,
    /// Since when it is measured, and the bytes that it had moved by then.
    measured: Option<(Instant, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Relapse {
    since: Instant,
    pinned: Bitrate,
    way: Way,
    /// What TLS carried just before.
    tls: Bitrate,
    judged: bool,
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
            trial: None,
            no_trial: None,
            trial_gap: RETRY_MIN,
            relapse: None,
            quic_since: None,
        }
    }

    /// What the operator wishes.
    pub(crate) fn wish(&self) -> Mode {
        self.wish
    }

    /// The operator wishes something else: all that was learned is forgotten.
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

    /// Whether a QUIC path may take the place of a TLS path.
    pub(crate) fn prefers_quic(&self) -> bool {
        self.wish == Mode::Auto && self.demotion.is_none() && self.trial.is_none()
    }

    pub(crate) fn demotion(&self) -> Option<&Demotion> {
        self.demotion.as_ref()
    }

    /// Whether a trial over TLS is on.
    pub(crate) fn on_trial(&self) -> bool {
        self.trial.is_some()
    }

    /// A TLS path carries.
    pub(crate) fn on_tls_path(&mut self, now: Instant) {
        self.quic_since = None;
        self.defer_retry(now);
        if let Some(trial) = &mut self.trial {
            trial.carried.get_or_insert(now);
        } else {
            self.probe_at = Some(now);
        }
        self.sign(now);
    }

    /// A QUIC path carries, after a TLS path with these rates or none. That ends a demotion; one
    /// for policing only when it was `probed`, as a retry: what wins a race says nothing of rates.
    pub(crate) fn on_quic_path(&mut self, now: Instant, probed: bool, tls: Both<Bitrate>) {
        (self.probe, self.probe_at) = (None, None);
        self.calm_down();
        self.probe_gap = PROBE_GAP;
        self.quic_since = Some(now);
        let ended = self.demotion.take_if(|demotion| probed || !demotion.why.is_policing());
        self.relapse = match ended.map(|demotion| demotion.why) {
            Some(Why::Policed { rate, way, .. } | Why::StillPoliced { rate, way, .. }) => {
                let tls = tls.of(way);
                Some(Relapse { since: now, pinned: rate, way, tls, judged: false })
            }
            _ => None,
        };
    }

    /// A retry after policing is judged by what TLS carries just before it: a TLS path that began,
    /// or makes progress again, shows that first.
    pub(crate) fn defer_retry(&mut self, now: Instant) {
        if let Some(demotion) = &mut self.demotion
            && demotion.why.is_policing()
        {
            demotion.retry_at = demotion.retry_at.max(now + SETTLE_MAX + MEASURE);
        }
    }

    /// TCP showed that the carrier lives.
    pub(crate) fn on_sign(&mut self, now: Instant) -> Option<Verdict> {
        self.sign(now);
        if std::mem::take(&mut self.pending) { self.count(now) } else { None }
    }

    /// The TLS path stalls, or is gone: silence says nothing about UDP.
    pub(crate) fn on_disturbed(&mut self) {
        self.pending = false;
        if let Some(probe) = &mut self.probe {
            probe.fresh = false;
        }
    }

    /// The probe came to nothing. Silence counts when TCP had just shown life, and shows it again;
    /// a refusal when TCP shows life. Whatever else ended it says nothing about UDP.
    pub(crate) fn on_probe_failed(&mut self, now: Instant, kind: EndingKind) -> Option<Verdict> {
        let probe = self.probe.take()?;
        let refused = kind == EndingKind::Refused;
        let counts = refused || (kind == EndingKind::Silent && probe.fresh);
        if let Some(demotion) = &mut self.demotion {
            if counts {
                demotion.wait = self.retry_next;
                self.retry_next = (self.retry_next * 2).min(RETRY_MAX);
            }
            demotion.retry_at = now + demotion.wait;
            return Some(Verdict::Demoted(*demotion));
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

    /// The probe was given up for a search, or answered.
    pub(crate) fn on_probe_dropped(&mut self, now: Instant) {
        if self.probe.take().is_none() {
            return;
        }
        match &mut self.demotion {
            Some(demotion) => demotion.retry_at = now + demotion.wait,
            None => self.probe_at = Some(now + PROBE_GAP),
        }
    }

    /// QUIC passes only at `rate` one way, as the side suspects that sends that way. Returns the
    /// verdict, or none when a trial begins or nothing follows; ask [`Choice::on_trial`].
    pub(crate) fn on_policed(&mut self, now: Instant, rate: Bitrate, way: Way) -> Option<Verdict> {
        if !self.prefers_quic() {
            return None;
        }
        if let Some(relapse) = self.relapse.take_if(|relapse| relapse.way == way) {
            let why = Why::StillPoliced { rate, tls: relapse.tls, way };
            return Some(self.demote(now, why));
        }
        if !self.is_rested(now) {
            return None;
        }
        let pinned = Bitrate::from_bps(rate.as_bps().max(PINNED_MIN.as_bps()));
        self.trial = Some(Trial { pinned, begun: now, way, carried: None, measured: None });
        None
    }

    /// No TLS path came up in place of the demoted QUIC path: QUIC is all there is.
    pub(crate) fn lift_demotion(&mut self, now: Instant) -> bool {
        let lifted = self.demotion.take().is_some();
        if lifted {
            self.calm_down();
            (self.relapse, self.quic_since) = (None, Some(now));
            self.rest(now);
        }
        lifted
    }

    /// A connection of the only mode there is may be renewed because it looks policed; then not
    /// again for a time.
    pub(crate) fn may_renew(&mut self, now: Instant) -> bool {
        let rested = self.is_rested(now);
        if rested {
            self.rest(now);
        }
        rested
    }

    /// Whether the time without trials is over.
    fn is_rested(&mut self, now: Instant) -> bool {
        if self.no_trial.is_some_and(|(until, _)| now < until) {
            return false;
        }
        // Nothing was suspected for as long again: that suspicion is over.
        if self.no_trial.take().is_some_and(|(until, wait)| now >= until + wait) {
            self.trial_gap = RETRY_MIN;
        }
        true
    }

    /// Makes no trial for a time, and for twice as long the next time.
    fn rest(&mut self, now: Instant) {
        self.no_trial = Some((now + self.trial_gap, self.trial_gap));
        self.trial_gap = (self.trial_gap * 2).min(RETRY_MAX);
    }

    /// Ends a trial without a result. Returns the rate to which UDP looked policed.
    pub(crate) fn drop_trial(&mut self, now: Instant) -> Option<Bitrate> {
        let trial = self.trial.take()?;
        self.no_trial = Some((now + self.trial_gap, self.trial_gap));
        Some(trial.pinned)
    }

    /// The carrier's network is another one: what was learned may be wrong there.
    pub(crate) fn on_network_change(&mut self, now: Instant) {
        self.calm_down();
        self.retry_next = RETRY_MIN;
        self.trial_gap = RETRY_MIN;
        self.no_trial = None;
        self.probe_gap = PROBE_GAP;
        let soon = now + RETRY_CHANGED;
        if let Some(demotion) = &mut self.demotion {
            demotion.retry_at = demotion.retry_at.min(soon);
            demotion.wait = RETRY_MIN;
        }
        self.probe_at = self.probe_at.map(|at| at.min(soon));
    }

    /// What is due by now.
    pub(crate) fn turn(&mut self, now: Instant, current: Current) -> Option<Verdict> {
        if self.wish != Mode::Auto {
            return None;
        }
        if self.trial.is_some() {
            return self.judge_trial(now, current);
        }
        match current.mode {
            TunnelMode::Quic => self.judge_quic(now, current),
            TunnelMode::Tls => {
                // A trial may have ended here without a result.
                self.probe_at.get_or_insert(now);
                if self.probe.is_some() || self.probe_due()? > now {
                    return None;
                }
                let fresh = self.sign_at.is_some_and(|at| since(now, at) <= SIGN_FRESH);
                self.probe = Some(Probe { fresh, sign: false });
                Some(Verdict::Probe { retry: self.demotion.is_some() })
            }
        }
    }

    /// When [`Choice::turn`] is next wanted, while the carrier runs over this.
    pub(crate) fn next_timeout(&self, current: Current) -> Option<Instant> {
        if self.wish != Mode::Auto {
            return None;
        }
        if let Some(trial) = &self.trial {
            let carried = trial.carried.filter(|_| current.mode == TunnelMode::Tls);
            return Some(match (carried, trial.measured) {
                (None, _) => trial.begun + TRIAL_MAX,
                (Some(since), None) => since + settle(current.srtt),
                (Some(_), Some((since, _))) => since + MEASURE,
            });
        }
        match current.mode {
            TunnelMode::Tls if self.probe.is_none() => self.probe_due(),
            TunnelMode::Tls => None,
            TunnelMode::Quic => {
                let relapse = self.relapse.filter(|relapse| !relapse.judged);
                relapse.map(|relapse| relapse.since + settle(current.srtt) + MEASURE)
            }
        }
    }

    /// When QUIC is tried beside a TLS path. Without a demotion it waits for a fresh sign of life,
    /// so that silence means something.
    fn probe_due(&self) -> Option<Instant> {
        if let Some(demotion) = &self.demotion {
            return Some(demotion.retry_at);
        }
        let at = self.probe_at?;
        let fresh = self.sign_at.is_some_and(|sign| sign + SIGN_FRESH >= at);
        Some(if fresh { at } else { at + PROBE_PATIENCE })
    }

    fn judge_trial(&mut self, now: Instant, current: Current) -> Option<Verdict> {
        let trial = self.trial.as_mut()?;
        let Some(carried) = trial.carried.filter(|_| current.mode == TunnelMode::Tls) else {
            if now < trial.begun + TRIAL_MAX {
                return None;
            }
            return self.drop_trial(now).map(|pinned| Verdict::TrialFailed { pinned });
        };
        if now < carried + settle(current.srtt) {
            return None;
        }
        let (pinned, way, total) = (trial.pinned, trial.way, current.total.of(trial.way));
        let (begun, before) = *trial.measured.get_or_insert((now, total));
        let time = since(now, begun);
        let moved = total.saturating_sub(before);
        let wanted = Bitrate::from_bps(pinned.as_bps().saturating_mul(GAIN));
        // Twice of what QUIC moves in all of the time is enough at once.
        let gains = moved >= wanted.bytes_in(time.max(MEASURE)).0;
        if !gains && time < MEASURE {
            return None;
        }
        let seconds = time.max(RATE_OVER).as_secs_f64();
        let tls = Bitrate::from_bytes_per_second((moved as f64 / seconds) as u64);
        self.trial = None;
        if gains {
            return Some(self.demote(now, Why::Policed { rate: pinned, tls, way }));
        }
        self.rest(now);
        Some(Verdict::Back { pinned, tls })
    }

    /// A QUIC path that lasts has earned its trust; one that is slow again after a demotion loses
    /// it.
    fn judge_quic(&mut self, now: Instant, current: Current) -> Option<Verdict> {
        if self.quic_since.is_some_and(|at| since(now, at) >= PROVEN_AFTER) {
            self.quic_since = None;
            self.retry_next = RETRY_MIN;
            self.relapse = None;
        }
        let relapse = self.relapse.as_mut()?;
        if relapse.judged || since(now, relapse.since) < settle(current.srtt) + MEASURE {
            return None;
        }
        relapse.judged = true;
        let relapse = *relapse;
        let rate = current.rates.of(relapse.way);
        let was_busy = relapse.tls.as_bps() >= relapse.pinned.as_bps().saturating_mul(GAIN);
        if !was_busy || rate < IDLE || rate.as_bps().saturating_mul(GAIN) > relapse.tls.as_bps() {
            return None;
        }
        let (tls, way) = (relapse.tls, relapse.way);
        Some(self.demote(now, Why::StillPoliced { rate, tls, way }))
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
        let wait = self.retry_next;
        self.retry_next = (wait * 2).min(RETRY_MAX);
        self.calm_down();
        (self.probe, self.relapse, self.quic_since) = (None, None, None);
        let demotion = Demotion { why, since: now, retry_at: now + wait, wait };
        self.demotion = Some(demotion);
        Verdict::Demoted(demotion)
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

fn since(now: Instant, then: Instant) -> Duration {
    now.saturating_duration_since(then)
}

/// How long a fresh connection's start is left out of a measurement.
fn settle(srtt: Duration) -> Duration {
    (srtt * 4).clamp(SETTLE_MIN, SETTLE_MAX)
}

/// How long after a sign of life of TCP a probe may begin that counts.
pub(crate) const SIGN_FRESH: Duration = Duration::from_secs(1);
/// The time between probes that count.
const PROBE_GAP: Duration = Duration::from_secs(1);
/// How long a probe waits for a fresh sign of life; a session asks an idle path every 20 s.
const PROBE_PATIENCE: Duration = Duration::from_secs(30);
/// The first wait of a demotion; it doubles up to the last one.
const RETRY_MIN: Duration = Duration::from_secs(30);
const RETRY_MAX: Duration = Duration::from_secs(600);
/// The wait after the carrier's network changed.
const RETRY_CHANGED: Duration = Duration::from_secs(5);
/// A QUIC path that lasted so long makes the waits short again.
const PROVEN_AFTER: Duration = Duration::from_secs(60);
/// What a trial measures, after the start of the connection was left out.
pub(crate) const MEASURE: Duration = Duration::from_millis(1_500);
/// The shortest time that a rate is told of.
const RATE_OVER: Duration = Duration::from_millis(100);
const SETTLE_MIN: Duration = Duration::from_millis(300);
const SETTLE_MAX: Duration = Duration::from_secs(1);
/// How many times faster TLS must be. Policed carriers pass 1 Mbit/s of UDP and many times that of
/// TCP (`papers/003` 5.1).
const GAIN: u64 = 2;
/// How long a trial waits for its TLS path.
const TRIAL_MAX: Duration = Duration::from_secs(5);
/// Taken for a pinned rate below it.
const PINNED_MIN: Bitrate = Bitrate::from_bps(100_000);
/// Below it a path is idle, and its rate says nothing.
const IDLE: Bitrate = Bitrate::from_bps(100_000);
