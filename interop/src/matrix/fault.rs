//! Causes each fault and measures how long its carrier takes to be in use again.
//!
//! The counters of the emulated link decide, not the reports of a daemon: a carrier is in use when
//! it has delivered [`IN_USE_BYTES`] more than were in flight when the fault began or ended.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_emulator::guest;
use polyrail_emulator::namespace::Namespace;

use crate::carrier::{self, Delivered};
use crate::lab::Lab;
use crate::world::World;

use super::target::{Class, IN_USE_BYTES};
use super::{Expected, Fault};

/// How long a fault of the link's quality lasts beyond the carrier's first data.
const STEADY_TIME: Duration = Duration::from_secs(2);
/// How long UDP is blocked on a carrier without another transport.
const OUT_TIME: Duration = Duration::from_secs(3);
/// How long an interface is missing, and without an address.
const GONE_TIME: Duration = Duration::from_secs(2);
const NO_ADDRESS_TIME: Duration = Duration::from_millis(300);
/// How long the translator learns the mappings of live connections before it forgets them.
const NAT_LEARNS: Duration = Duration::from_millis(300);
const BURSTS: u32 = 3;
const BURST_TIME: Duration = Duration::from_millis(500);
/// A carrier has left policed UDP when it carries this much within [`DEMOTED_WINDOW`]: more than
/// twice the policer's rate.
const DEMOTED_BYTES: u64 = 300_000;
const DEMOTED_WINDOW: Duration = Duration::from_secs(1);
/// If the next such window begins later than this, the carrier had returned to policed UDP.
const RELAPSE: Duration = Duration::from_millis(300);
/// The rate of the policer.
const POLICED: &str = "1 Mbit/s";
/// The gateway's other host number on a carrier.
const OTHER_HOST: u8 = 3;

/// How long a carrier may take until it uses the mode of its row, and QUIC before a fault of UDP. A
/// demotion by an earlier fault lasts 30 s.
pub(super) const MODE_LIMIT: Duration = Duration::from_secs(45);

/// How often the counters are read. In a guest, that starts a process for each link.
fn look_every() -> Duration {
    Duration::from_millis(if guest::is_inside() { 100 } else { 5 })
}

/// Whether the first fault of a row exists before the download.
pub(super) fn is_there_at_start(fault: Fault) -> bool {
    matches!(fault, Fault::None | Fault::UdpBlockedAtStart) || steady(fault).is_some()
}

/// The emulator's command before the daemons start; `None` for faults in mid-transfer.
pub(super) fn before_start(fault: Fault, carrier: &str) -> Option<String> {
    match fault {
        Fault::UdpBlockedAtStart => Some(format!("set {carrier} udp blocked")),
        other => steady(other).map(|(on, _)| format!("set {carrier} {on}")),
    }
}

/// The emulator's settings that begin and end a fault of the link's quality.
fn steady(fault: Fault) -> Option<(&'static str, &'static str)> {
    match fault {
        Fault::RandomLoss => Some(("loss 0.03", "loss 0")),
        Fault::Mtu1280 => Some(("mtu 1280", "mtu off")),
        Fault::Mtu1280Silent => Some(("mtu 1280 silent", "mtu off")),
        Fault::Reorder => Some(("reorder 0.05 10 ms", "reorder off")),
        _ => None,
    }
}

/// Waits until the carrier's path is up in this mode.
pub(super) fn must_travel_by(
    world: &World,
    carrier: &str,
    mode: &str,
    limit: Duration,
) -> Result<()> {
    world
        .wait_for_path(carrier, limit, |path| path["state"] == "up" && path["mode"] == mode)
        .with_context(|| format!("{carrier} does not use {mode}"))
}

/// A carrier under a fault.
pub(super) struct Victim<'a> {
    pub(super) world: &'a World,
    pub(super) carrier: usize,
    /// Holds a removed interface.
    pub(super) drawer: &'a Namespace,
    /// The timeout.
    pub(super) limit: Duration,
}

/// The delivered bytes at a moment, from which use counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) at: Instant,
    pub(super) bytes: u64,
}

impl Victim<'_> {
    /// Causes the fault, waits until the carrier is in use again, and ends the fault. `since` is
    /// the start of the download if the fault existed before it.
    pub(super) fn suffer(
        &self,
        fault: Fault,
        expected: Expected,
        since: Option<Mark>,
    ) -> Result<Duration> {
        match fault {
            Fault::None => self.in_use_since(&since.map_or_else(|| self.mark(), Ok)?),
            Fault::UdpBlockedAtStart | Fault::UdpBlocked => self.udp_blocked(fault, expected),
            Fault::UdpPoliced => self.udp_policed(expected),
            Fault::BlackoutDrop(seconds) => self.blackout("drop", seconds),
            Fault::BlackoutHold(seconds) => self.blackout("hold", seconds),
            Fault::NatRebinding => self.nat_rebinding(),
            Fault::AddressChange => self.address_change(),
            Fault::InterfaceRemoved => self.interface_removed(),
            Fault::LossBursts => self.loss_bursts(),
            Fault::RandomLoss | Fault::Mtu1280 | Fault::Mtu1280Silent | Fault::Reorder => {
                self.worse(fault, since)
            }
        }
    }

    fn udp_blocked(&self, fault: Fault, expected: Expected) -> Result<Duration> {
        let at_start = fault == Fault::UdpBlockedAtStart;
        let mark = if at_start {
            Mark { at: self.world.gateway_started, bytes: 0 }
        } else {
            self.must_travel_by("quic", MODE_LIMIT)?;
            self.tell("udp blocked")?;
            self.mark()?
        };
        if expected == Expected::Back(Class::Fallback)
            || expected == Expected::Back(Class::FallbackAtStart)
        {
            let took = self.in_use_since(&mark)?;
            self.must_travel_by("tls", self.limit)?;
            self.tell("udp free")?;
            return Ok(took);
        }
        std::thread::sleep(OUT_TIME);
        let carried = self.delivered()?.down_bytes.saturating_sub(mark.bytes);
        ensure!(carried < IN_USE_BYTES, "{carried} bytes arrived while UDP was blocked");
        self.tell("udp free")?;
        self.in_use_since(&self.mark()?)
    }

    fn udp_policed(&self, expected: Expected) -> Result<Duration> {
        self.must_travel_by("quic", MODE_LIMIT)?;
        self.tell(&format!("udp {POLICED}"))?;
        let mark = self.mark()?;
        let took = match expected {
            Expected::Back(Class::Demotion) => {
                let took = self.demoted_for_good(mark)?;
                self.must_travel_by("tls", self.limit)?;
                took
            }
            _ => {
                let took = self.in_use_since(&mark)?;
                std::thread::sleep(STEADY_TIME);
                took
            }
        };
        self.tell("udp free")?;
        Ok(took)
    }

    fn blackout(&self, how: &str, seconds: u8) -> Result<Duration> {
        let name = self.name();
        carrier::command(self.lab(), &format!("down {name} {how}"))?;
        std::thread::sleep(Duration::from_secs(u64::from(seconds)));
        let inside = self.mark()?.bytes;
        carrier::command(self.lab(), &format!("up {name}"))?;
        self.in_use_since(&Mark { at: Instant::now(), bytes: inside })
    }

    fn nat_rebinding(&self) -> Result<Duration> {
        self.tell("nat on")?;
        std::thread::sleep(NAT_LEARNS);
        self.tell("nat rebind")?;
        self.in_use_since(&self.mark()?)
    }

    fn address_change(&self) -> Result<Duration> {
        let carrier = &self.world.carriers[self.carrier];
        carrier.withdraw_address(self.lab())?;
        std::thread::sleep(NO_ADDRESS_TIME);
        let mark = self.mark()?;
        carrier.assign_address(self.lab(), OTHER_HOST)?;
        self.in_use_since(&Mark { at: Instant::now(), ..mark })
    }

    fn interface_removed(&self) -> Result<Duration> {
        let carrier = &self.world.carriers[self.carrier];
        carrier.remove(self.lab(), self.drawer)?;
        std::thread::sleep(GONE_TIME);
        let mark = self.mark()?;
        carrier.reinsert(self.lab(), self.drawer)?;
        self.in_use_since(&Mark { at: Instant::now(), ..mark })
    }

    fn loss_bursts(&self) -> Result<Duration> {
        for burst in 0..BURSTS {
            if burst > 0 {
                std::thread::sleep(BURST_TIME);
            }
            self.tell("loss 0.3")?;
            std::thread::sleep(BURST_TIME);
            self.tell("loss 0")?;
        }
        self.in_use_since(&self.mark()?)
    }

    fn worse(&self, fault: Fault, since: Option<Mark>) -> Result<Duration> {
        let (on, off) = steady(fault).context("no fault of quality")?;
        if since.is_none() {
            self.tell(on)?;
        }
        let took = self.in_use_since(&since.map_or_else(|| self.mark(), Ok)?)?;
        std::thread::sleep(STEADY_TIME);
        self.in_use_since(&self.mark()?).context("later on")?;
        self.tell(off)?;
        Ok(took)
    }

    /// Waits until the carrier has delivered [`IN_USE_BYTES`] beyond the mark.
    fn in_use_since(&self, mark: &Mark) -> Result<Duration> {
        loop {
            let carried = self.delivered()?.down_bytes.saturating_sub(mark.bytes);
            let took = mark.at.elapsed();
            if carried >= IN_USE_BYTES {
                return Ok(took);
            }
            ensure!(
                took < self.limit,
                "{} is not in use after {took:.1?}: {carried} bytes",
                self.name()
            );
            std::thread::sleep(look_every());
        }
    }

    /// The time until the first window with [`DEMOTED_BYTES`] without a relapse after it.
    fn demoted_for_good(&self, mark: Mark) -> Result<Duration> {
        let mut seen = mark;
        loop {
            let begin = seen.at.duration_since(mark.at) + self.demoted_since(&seen)?;
            std::thread::sleep(STEADY_TIME);
            seen = self.mark()?;
            if self.demoted_since(&seen)? < RELAPSE {
                return Ok(begin);
            }
            ensure!(mark.at.elapsed() < self.limit, "{} does not stay demoted", self.name());
        }
    }

    fn must_travel_by(&self, mode: &str, limit: Duration) -> Result<()> {
        must_travel_by(self.world, self.name(), mode, limit)
    }

    /// Waits for a window with [`DEMOTED_BYTES`] and returns when it began.
    fn demoted_since(&self, mark: &Mark) -> Result<Duration> {
        let mut looks: VecDeque<(Duration, u64)> = VecDeque::new();
        loop {
            let (took, bytes) = (mark.at.elapsed(), self.delivered()?.down_bytes);
            looks.push_back((took, bytes));
            while looks.get(1).is_some_and(|(at, _)| took - *at >= DEMOTED_WINDOW) {
                looks.pop_front();
            }
            let (begin, then) = looks.front().copied().unwrap_or((took, bytes));
            let carried = bytes.saturating_sub(then);
            if took - begin >= DEMOTED_WINDOW && then >= mark.bytes && carried >= DEMOTED_BYTES {
                return Ok(begin);
            }
            ensure!(
                took < self.limit + DEMOTED_WINDOW,
                "{} still carries only {carried} bytes/s after {took:.1?}",
                self.name()
            );
            std::thread::sleep(look_every());
        }
    }

    /// The current moment; bytes in flight count as delivered.
    fn mark(&self) -> Result<Mark> {
        let seen = self.delivered()?;
        Ok(Mark { at: Instant::now(), bytes: seen.down_bytes + seen.down_inside_bytes })
    }

    fn delivered(&self) -> Result<Delivered> {
        let all = carrier::counters(self.lab())?;
        all.into_iter().nth(self.carrier).context("a carrier without counters")
    }

    fn tell(&self, what: &str) -> Result<()> {
        carrier::command(self.lab(), &format!("set {} {what}", self.name())).map(|_| ())
    }

    fn name(&self) -> &str {
        self.world.carriers[self.carrier].name()
    }

    fn lab(&self) -> &Lab {
        &self.world.lab
    }
}
