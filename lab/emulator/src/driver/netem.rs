//! The netem driver: each link is a veth pair, and the kernel's `netem` at each end delays, limits
//! and drops what leaves there.
//!
//! Differences from the link model:
//! - A blackout drops arriving packets, but queued packets still leave. netem decides a packet's
//!   departure when the packet arrives, so it supports neither blackouts that hold packets, nor a
//!   rate of zero, nor `reorder`. It does not look into packets, so it can neither police UDP, nor
//!   refuse large packets, nor translate ports. Such a scenario or command is refused.
//! - The queue limit is in packets of MTU size.
//! - Loss precedes the rate limit and uses the kernel's seed. All drops are one counter.
//! - When the delay falls, later packets may overtake earlier ones.
//!
//! Both ends have the same link address and no ARP, so a link carries only its traffic, as a TUN
//! device does.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use polyrail_model::{Bitrate, Bytes};
use serde_json::{Value, json};

use super::outside::{self, Outside, system};
use super::{Driver, LiveLinks, Options, RunError, Sides};
use crate::control::{Command, Target};
use crate::link::{Blackout, Counters, FLIGHT_MAX, LinkSpec, Policing, Rate, Setting, Tally};
use crate::namespace::Namespace;
use crate::report::{DirectionReport, LinkReport};
use crate::scenario::{LinkScenario, Scenario};

/// The link address of all ends: an arbitrary, locally administered one.
const LINK_ADDRESS: &str = "02:00:00:00:00:01";

/// netem counts this many bytes per packet in addition to its IP bytes.
const ETHERNET_HEADER: u64 = 14;

/// The longest sleep when nothing is due.
const SLEEP_MS_MAX: u16 = 60_000;

const NO_HOLD: &str = "netem cannot hold packets during a blackout; the tun driver can";
const NO_STOP: &str = "netem cannot stop at a rate of zero; the tun driver can";
const NO_REORDER: &str = "netem cannot hold single packets back (reorder); the tun driver can";
const NO_UDP: &str = "netem cannot tell UDP from the rest; the tun driver can";
const NO_MTU: &str = "netem cannot drop packets by their size; the tun driver can";
const NO_SEED: &str = "netem draws by the kernel's seed; the tun driver takes one";
const NO_NAT: &str = "netem cannot translate ports; the tun driver can";

/// One direction of a link: the netem of the interface where packets enter it.
struct Lane {
    namespace: Namespace,
    interface: String,
    mtu: u16,
    spec: LinkSpec,
    forced: Option<Blackout>,
    /// The arguments that netem has now.
    applied: String,
}

struct NetemRail {
    epoch: Instant,
    /// Two for each link: up, then down.
    lanes: Vec<Lane>,
    names: Vec<String>,
}

/// Why netem does not support the scenario, if it does not.
pub(super) fn obstacle(scenario: &Scenario) -> Option<String> {
    let directions = scenario
        .links
        .iter()
        .flat_map(|link| [(&link.name, "up", &link.up), (&link.name, "down", &link.down)]);
    let found = |spec: &LinkSpec| {
        let all = [
            (spec.reorder.is_some(), NO_REORDER),
            (spec.udp != Policing::Free, NO_UDP),
            (spec.mtu.is_some(), NO_MTU),
            (spec.blackouts.values().any(|mode| mode == Some(Blackout::Hold)), NO_HOLD),
            (spec.rate.values().any(is_stop), NO_STOP),
        ];
        all.into_iter().find_map(|(is_so, why)| is_so.then_some(why))
    };
    let translated = scenario.links.iter().find(|link| link.nat);
    directions
        .filter_map(|(link, side, spec)| Some(format!("link {link}, {side}: {}", found(spec)?)))
        .next()
        .or_else(|| Some(format!("link {}: {NO_NAT}", translated?.name)))
}

/// Why netem does not support the command, if it does not.
fn refusal(command: &Command) -> Option<&'static str> {
    match command {
        Command::Down(_, Blackout::Hold) => Some(NO_HOLD),
        Command::Nat(..) => Some(NO_NAT),
        Command::Set(_, setting) => match setting {
            Setting::Rate(rate) if is_stop(*rate) => Some(NO_STOP),
            Setting::Reorder(Some(_)) => Some(NO_REORDER),
            Setting::Udp(Policing::Blocked | Policing::Limited(_)) => Some(NO_UDP),
            Setting::Mtu(Some(_)) => Some(NO_MTU),
            Setting::Seed(_) => Some(NO_SEED),
            _ => None,
        },
        _ => None,
    }
}

fn is_stop(rate: Rate) -> bool {
    rate == Rate::Limited(Bitrate::default())
}

pub(super) fn run(
    scenario: &Scenario,
    options: &Options,
    sides: &Sides,
    why: &str,
) -> Result<(), RunError> {
    let gate = outside::gate()?;
    let mut outside = Outside::new(options, &gate)?;
    let mut rail = NetemRail {
        epoch: Instant::now(),
        lanes: Vec::new(),
        names: scenario.links.iter().map(|link| link.name.clone()).collect(),
    };
    for link in &scenario.links {
        rail.lanes.extend(lanes(sides, link)?);
    }
    let epoch = Instant::now();
    rail.epoch = epoch;
    rail.steer(epoch)?;
    outside.begin(epoch, scenario.duration);
    super::print_ready(scenario, options, Driver::Netem, why, false);
    loop {
        let now = Instant::now();
        let next = rail.next_change(now).into_iter().chain(outside.next_timeout()).min();
        let mut polled = [PollFd::new(gate.0.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, timeout(next.map(|next| next.saturating_duration_since(now)))) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(system("waiting for the next change")(error.into())),
        }
        if !outside.attend(Instant::now(), &gate, &mut rail) {
            break;
        }
        rail.steer(Instant::now())?;
    }
    outside::print_reports(Instant::now(), &mut rail);
    outside::print_line(&json!({ "total": {} }));
    Ok(())
}

/// In whole milliseconds, rounded up.
fn timeout(sleep: Option<Duration>) -> PollTimeout {
    let ms = sleep.map_or(u128::MAX, |sleep| sleep.as_micros().div_ceil(1000));
    PollTimeout::from(u16::try_from(ms).unwrap_or(SLEEP_MS_MAX).min(SLEEP_MS_MAX))
}

/// Makes the veth pair of a link, with a netem at each end.
fn lanes(sides: &Sides, link: &LinkScenario) -> Result<[Lane; 2], RunError> {
    let (near, far) = (sides.of(&link.near, false)?, sides.of(&link.far, true)?);
    let pair = format!(
        "link add name {} address {LINK_ADDRESS} type veth \
         peer name {} address {LINK_ADDRESS} netns {}",
        link.near.interface,
        link.far.interface,
        far.path().display()
    );
    let failed = |interface: &str| {
        let (link, interface) = (link.name.clone(), interface.to_owned());
        move |error| RunError::Interface { link, interface, error }
    };
    near.ip(&pair).map_err(failed(&link.near.interface))?;
    let lane = |namespace: &Namespace, interface: &str, spec: &LinkSpec| Lane {
        namespace: namespace.clone(),
        interface: interface.to_owned(),
        mtu: link.mtu,
        spec: spec.clone(),
        forced: None,
        applied: String::new(),
    };
    let lanes =
        [lane(&near, &link.near.interface, &link.up), lane(&far, &link.far.interface, &link.down)];
    for (lane, end) in lanes.iter().zip([&link.near, &link.far]) {
        let name = &end.interface;
        // netem takes an unsegmented burst of TCP for one packet, so segment it earlier.
        lane.namespace
            .ip(&format!("link set dev {name} arp off gso_max_segs 1"))
            .and_then(|()| super::bring_up(&lane.namespace, end, link.mtu))
            .map_err(failed(name))?;
    }
    Ok(lanes)
}

impl Lane {
    /// Sets netem's arguments for the time `offset` after the epoch.
    fn steer(&mut self, offset: Duration) -> std::io::Result<()> {
        let dark = self.blackout(offset).is_some();
        let wanted = arguments(&self.spec, offset, dark, self.mtu);
        if wanted == self.applied {
            return Ok(());
        }
        let verb = if self.applied.is_empty() { "add" } else { "change" };
        let interface = &self.interface;
        self.namespace
            .tool("tc", &format!("qdisc {verb} dev {interface} root handle 1: netem {wanted}"))?;
        self.applied = wanted;
        Ok(())
    }

    fn blackout(&self, offset: Duration) -> Option<Blackout> {
        self.forced.max(self.spec.blackouts.at(offset).value)
    }

    /// When the schedules next change, counted from the epoch.
    fn next_change(&self, offset: Duration) -> Option<Duration> {
        let spec = &self.spec;
        let changes = [
            spec.rate.at(offset).until,
            spec.delay.at(offset).until,
            spec.loss_steps.as_ref().and_then(|steps| steps.at(offset).until),
            spec.blackouts.at(offset).until,
        ];
        changes.into_iter().flatten().min()
    }

    fn report(&self, offset: Duration) -> std::io::Result<DirectionReport> {
        let shown = format!("-s -j qdisc show dev {} root", self.interface);
        let shown: Value = serde_json::from_str(&self.namespace.tool("tc", &shown)?)?;
        let figure = |name: &str| shown[0][name].as_u64().unwrap_or(0);
        let tally = |packets: u64, bytes: u64| Tally {
            packets,
            bytes: bytes.saturating_sub(packets * ETHERNET_HEADER),
        };
        let delivered = tally(figure("packets"), figure("bytes"));
        let queued = tally(figure("qlen"), figure("backlog"));
        let drops = figure("drops");
        let offered = Tally {
            packets: delivered.packets + queued.packets + drops,
            bytes: delivered.bytes + queued.bytes,
        };
        Ok(DirectionReport {
            counters: Counters { offered, delivered, ..Counters::default() },
            queued,
            in_flight: Tally::default(),
            refused: 0,
            nat_dropped: 0,
            unsorted_drops: Some(drops),
            dark: self.blackout(offset).is_some(),
            timing: None,
        })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // This deletes the other end, too.
        let _ = self.namespace.ip(&format!("link del dev {}", self.interface));
    }
}

/// netem's arguments.
fn arguments(spec: &LinkSpec, offset: Duration, dark: bool, mtu: u16) -> String {
    let delay = spec.delay.at(offset).value;
    let rate = match spec.rate.at(offset).value {
        Rate::Limited(rate) => Some(rate),
        Rate::Unlimited => None,
    };
    let loss = if dark { "loss 100%".to_owned() } else { loss(spec, offset) };
    let percent = spec.duplicate.get() * 100.0;
    let duplicate = if percent > 0.0 { format!("duplicate {percent}%") } else { String::new() };
    let words = [
        format!("limit {}", packets_max(spec.queue, rate, delay, mtu)),
        format!("delay {}us", delay.as_micros()),
        loss,
        duplicate,
        // Zero removes an earlier limit.
        format!("rate {}bit", rate.map_or(0, Bitrate::as_bps)),
    ];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Random loss and bursts as netem's one loss model: random loss adds to both states.
fn loss(spec: &LinkSpec, offset: Duration) -> String {
    let random = spec.loss_at(offset).get();
    let Some(burst) = spec.burst_loss else {
        return if random > 0.0 { format!("loss {}%", random * 100.0) } else { String::new() };
    };
    let with_random = |p: f64| (1.0 - (1.0 - p) * (1.0 - random)) * 100.0;
    format!(
        "loss gemodel {}% {}% {}% {}%",
        burst.enter.get() * 100.0,
        burst.leave.get() * 100.0,
        with_random(burst.loss.get()),
        with_random(burst.loss_good.get())
    )
}

/// netem's limit is in packets and includes packets in propagation.
fn packets_max(queue: Bytes, rate: Option<Bitrate>, delay: Duration, mtu: u16) -> u64 {
    let flight = rate.map_or(FLIGHT_MAX, |rate| rate.bytes_in(delay));
    (queue + flight).0.div_ceil(u64::from(mtu)) + 1
}

impl NetemRail {
    fn offset(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.epoch)
    }

    fn steer(&mut self, now: Instant) -> Result<(), RunError> {
        let offset = self.offset(now);
        self.lanes
            .iter_mut()
            .try_for_each(|lane| lane.steer(offset))
            .map_err(system("configuring netem"))
    }

    fn next_change(&self, now: Instant) -> Option<Instant> {
        let offset = self.offset(now);
        let next = self.lanes.iter().filter_map(|lane| lane.next_change(offset)).min()?;
        self.epoch.checked_add(next)
    }

    /// The lanes that a command applies to.
    fn aimed(&mut self, target: &Target) -> Result<impl Iterator<Item = &mut Lane>, String> {
        let places = target.places(&self.names)?;
        let lanes = self.lanes.iter_mut().enumerate();
        Ok(lanes.filter(move |(place, _)| places.contains(&Some(*place))).map(|(_, lane)| lane))
    }
}

impl LiveLinks for NetemRail {
    fn apply(&mut self, now: Instant, command: &Command) -> Result<(), String> {
        if let Some(reason) = refusal(command) {
            return Err(reason.into());
        }
        match command {
            Command::Down(target, mode) => {
                self.aimed(target)?.for_each(|lane| lane.forced = Some(*mode));
            }
            Command::Up(target) => self.aimed(target)?.for_each(|lane| lane.forced = None),
            Command::Set(target, setting) => {
                // `refusal` admits only those other settings that netem has anyway.
                self.aimed(target)?.for_each(|lane| lane.spec.set(*setting));
            }
            Command::Nat(..) | Command::Stats => {}
        }
        self.steer(now).map_err(|error| error.to_string())
    }

    fn report(&mut self, now: Instant) -> Vec<LinkReport> {
        let offset = self.offset(now);
        let direction = |lane: &Lane| {
            lane.report(offset)
                .inspect_err(|error| tracing::warn!(lane.interface, %error, "no statistics"))
                .ok()
        };
        let pairs = self.lanes.chunks_exact(2).zip(&self.names);
        pairs
            .filter_map(|(lanes, name)| {
                let (up, down) = (direction(&lanes[0])?, direction(&lanes[1])?);
                Some(LinkReport { link: name.clone(), up, down })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(direction: &str, rest: &str) -> Scenario {
        let text = format!("[[link]]\nname = \"a\"\nup = {{ {direction} }}\ndown = {{}}\n{rest}");
        Scenario::parse(&text).unwrap()
    }

    #[test]
    fn a_direction_becomes_netem_arguments() {
        for (direction, at, dark, wanted) in [
            ("", 0, false, "limit 44916 delay 0us rate 0bit"),
            (
                "rate = \"20 Mbit/s\", delay = \"20 ms\", queue = \"150 kB\"",
                0,
                false,
                "limit 135 delay 20000us rate 20000000bit",
            ),
            (
                "rate = \"12 kbit/s\", rate_steps = [{ at = \"5 s\", rate = \"24 kbit/s\" }], \
                 queue = \"0 B\", loss = 0.5",
                5,
                false,
                "limit 1 delay 0us loss 50% rate 24000bit",
            ),
            (
                "rate = \"8 bit/s\", queue = \"0 B\", loss = 0.5, \
                 burst_loss = { enter = 0.25, leave = 0.5 }, duplicate = 0.25",
                0,
                false,
                "limit 1 delay 0us loss gemodel 25% 50% 100% 50% duplicate 25% rate 8bit",
            ),
            (
                "rate = \"8 bit/s\", queue = \"0 B\", loss_steps = [{ at = \"5 s\", loss = 0.5 }]",
                6,
                false,
                "limit 1 delay 0us loss 50% rate 8bit",
            ),
            (
                "rate = \"8 bit/s\", queue = \"0 B\", loss = 0.5",
                0,
                true,
                "limit 1 delay 0us loss 100% rate 8bit",
            ),
        ] {
            let spec = &scenario(direction, "").links[0].up;
            assert_eq!(arguments(spec, Duration::from_secs(at), dark, 1500), wanted);
        }
    }

    #[test]
    fn unsupported_scenario_is_reported_with_its_link() {
        let hold = "[[link.blackout]]\nstart = \"1 s\"\nlength = \"1 s\"\nmode = \"hold\"\n\
                    direction = \"down\"\n";
        for (direction, rest, reason) in [
            ("reorder = { share = 0.1, delay = \"1 ms\" }", "", "link a, up: netem cannot hold s"),
            ("rate = \"0 bit/s\"", "", "link a, up: netem cannot stop"),
            ("udp = \"blocked\"", "", "link a, up: netem cannot tell UDP"),
            ("mtu = 1280", "", "link a, up: netem cannot drop packets by their size"),
            ("", hold, "link a, down: netem cannot hold packets"),
        ] {
            let obstacle = obstacle(&scenario(direction, rest)).unwrap();
            assert!(obstacle.starts_with(reason), "{obstacle}");
        }
        let drop = hold.replace("hold", "drop");
        assert_eq!(obstacle(&scenario("loss = 0.1", &drop)), None);
        let text = "[[link]]\nname = \"a\"\nup = {}\ndown = {}\nnat = true\n";
        let reason = obstacle(&Scenario::parse(text).unwrap()).unwrap();
        assert!(reason.starts_with("link a: netem cannot translate"), "{reason}");
    }

    #[test]
    fn unsupported_commands_are_refused() {
        for (line, reason) in [
            ("down a hold", Some("hold packets")),
            ("set a rate 0 bit/s", Some("a rate of zero")),
            ("set a reorder 0.1 1 ms", Some("hold single packets back")),
            ("set a udp blocked", Some("tell UDP")),
            ("set a udp 1 Mbit/s", Some("tell UDP")),
            ("set a mtu 1280", Some("by their size")),
            ("set a seed 7", Some("by the kernel's seed")),
            ("set a nat rebind", Some("translate")),
            ("set a reorder off", None),
            ("set a udp free", None),
            ("set a burst-loss 0.1 0.5", None),
            ("down a", None),
        ] {
            let refused = refusal(&line.parse().unwrap());
            let fits =
                refused.zip(reason).is_some_and(|(refused, reason)| refused.contains(reason));
            assert!(fits || refused.is_none() && reason.is_none(), "{line}: {refused:?}");
        }
    }

    #[test]
    fn a_sleep_is_never_too_short() {
        for (sleep, ms) in [(0, 0), (1, 1), (1000, 1), (1001, 2), (99_000_000, 60_000)] {
            let timeout = timeout(Some(Duration::from_micros(sleep)));
            assert_eq!(timeout.as_millis(), Some(ms), "{sleep} us");
        }
    }
}
