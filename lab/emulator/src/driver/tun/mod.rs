//! The TUN driver: each end of a link is a TUN device, and this process carries the packets
//! between the two through the link model.
//!
//! One thread sleeps until a packet arrives or is due. The kernel's timers wake it within some ten
//! microseconds; it does not spin. Devices, addresses and routes vanish with the process.

mod frame;
mod lane;

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::time::TimeSpec;
use nix::unistd::Pid;
use serde_json::json;

use super::outside::{self, Outside, system};
use super::{Driver, LiveLinks, Options, RunError, Sides};
use crate::control::{Command, Target};
use crate::link::LinkModel;
use crate::packet::nat::{Nat, Order};
use crate::report::{LinkReport, Timing};
use crate::scenario::{End, LinkScenario, Scenario};
use crate::sys;

use frame::Pool;
use lane::Lane;

/// The spare bytes of a buffer beyond the MTU; no packet of a TUN device is longer than the MTU.
const BUFFER_SPARE: usize = 64;

/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// The devices of one link.
struct Devices {
    near: File,
    far: File,
}

struct TunRail<'f> {
    /// Two for each link: up, then down.
    lanes: Vec<Lane<'f>>,
    /// One for each link.
    nats: Vec<Nat>,
    names: Vec<String>,
}

pub(super) fn run(
    scenario: &Scenario,
    options: &Options,
    sides: &Sides,
    why: &str,
) -> Result<(), RunError> {
    let gate = outside::gate()?;
    let mut outside = Outside::new(options, &gate)?;
    let devices = scenario
        .links
        .iter()
        .map(|link| {
            let near = device(sides, link, &link.near, false)?;
            Ok(Devices { near, far: device(sides, link, &link.far, true)? })
        })
        .collect::<Result<Vec<_>, RunError>>()?;
    let realtime = prefer(options)?;
    let epoch = Instant::now();
    let mut rail = TunRail::new(scenario, &devices, epoch);
    outside.begin(epoch, scenario.duration);
    super::print_ready(scenario, options, Driver::Tun, why, realtime);
    // The places of the lanes' devices in the poll set; the gate comes last.
    let files = devices.iter().flat_map(|devices| [&devices.near, &devices.far]);
    let mut polled: Vec<_> = files
        .map(|file| file.as_fd())
        .chain([gate.0.as_fd()])
        .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
        .collect();
    loop {
        rail.give_out();
        let now = Instant::now();
        let wake = rail.next_wake().into_iter().chain(outside.next_timeout()).min();
        let sleep = wake.map_or(SLEEP_MAX, |wake| wake.saturating_duration_since(now));
        match ppoll(&mut polled, Some(TimeSpec::from_duration(sleep)), None) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(system("waiting for packets")(error.into())),
        }
        for (place, device) in polled[..rail.lanes.len()].iter().enumerate() {
            let events = device.revents().unwrap_or(PollFlags::empty());
            if events.intersects(PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL) {
                return Err(RunError::Gone { interface: interface(scenario, place) });
            }
            if events.contains(PollFlags::POLLIN) {
                rail.give_out();
                rail.lanes[place].take_in(&mut rail.nats[place / 2]);
            }
        }
        let due = outside.next_timeout().is_some_and(|timeout| Instant::now() >= timeout);
        let called = polled.last().is_some_and(|gate| gate.any() == Some(true));
        if (due || called) && !outside.attend(Instant::now(), &gate, &mut rail) {
            break;
        }
    }
    outside::print_reports(Instant::now(), &mut rail);
    outside::print_line(&json!({ "total": { "timing": rail.timing().report() } }));
    Ok(())
}

fn device(sides: &Sides, link: &LinkScenario, end: &End, is_far: bool) -> Result<File, RunError> {
    let namespace = sides.of(end, is_far)?;
    let made = || {
        let device = namespace.run(|| sys::open_tun(&end.interface))??;
        super::bring_up(&namespace, end, link.mtu)?;
        Ok(device)
    };
    made().map_err(|error| RunError::Interface {
        link: link.name.clone(),
        interface: end.interface.clone(),
        error,
    })
}

/// The interface of the device at a place: those of a link in pairs, near first.
fn interface(scenario: &Scenario, place: usize) -> String {
    let link = &scenario.links[place / 2];
    if place.is_multiple_of(2) { &link.near } else { &link.far }.interface.clone()
}

/// Asks for prompt scheduling of this thread; true if it has real-time priority.
fn prefer(options: &Options) -> Result<bool, RunError> {
    if let Some(core) = options.core {
        let mut cores = CpuSet::new();
        cores
            .set(core)
            .and_then(|()| sched_setaffinity(Pid::from_raw(0), &cores))
            .map_err(|e| system("staying on one core")(e.into()))?;
    }
    if let Err(error) = nix::sys::prctl::set_timerslack(1) {
        tracing::warn!(%error, "timers stay coarse");
    }
    if !options.realtime {
        return Ok(false);
    }
    let granted = sys::run_in_real_time();
    if let Err(error) = &granted {
        tracing::warn!(%error, "no real-time priority; a busy machine will delay packets");
    }
    Ok(granted.is_ok())
}

impl<'f> TunRail<'f> {
    fn new(scenario: &Scenario, devices: &'f [Devices], epoch: Instant) -> Self {
        let (mut lanes, mut nats) = (Vec::new(), Vec::new());
        for (number, (link, devices)) in scenario.links.iter().zip(devices).enumerate() {
            let pool = Pool::new(usize::from(link.mtu) + BUFFER_SPARE);
            let model = |spec: &crate::link::LinkSpec, down| {
                LinkModel::new(spec.clone(), epoch, scenario.seed_of(number, down))
            };
            let (near, far) = (&devices.near, &devices.far);
            lanes.push(Lane::new(near, far, false, model(&link.up, false), pool.clone()));
            lanes.push(Lane::new(far, near, true, model(&link.down, true), pool));
            let mut nat = Nat::new(scenario.seed_of(number, false));
            nat.obey(if link.nat { Order::On } else { Order::Off });
            nats.push(nat);
        }
        Self { lanes, nats, names: scenario.links.iter().map(|link| link.name.clone()).collect() }
    }

    fn give_out(&mut self) {
        let now = Instant::now();
        for (place, lane) in self.lanes.iter_mut().enumerate() {
            lane.give_out(now, &mut self.nats[place / 2]);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.lanes.iter().filter_map(Lane::wake).min()
    }

    fn timing(&self) -> Timing {
        let mut all = Timing::new();
        for lane in &self.lanes {
            all.add(lane.timing());
        }
        all
    }

    /// The lanes of a command's target.
    fn aimed(&mut self, target: &Target) -> Result<impl Iterator<Item = &mut Lane<'f>>, String> {
        let places = target.places(&self.names)?;
        let lanes = self.lanes.iter_mut().enumerate();
        Ok(lanes.filter(move |(place, _)| places.contains(&Some(*place))).map(|(_, lane)| lane))
    }
}

impl LiveLinks for TunRail<'_> {
    fn apply(&mut self, now: Instant, command: &Command) -> Result<(), String> {
        match command {
            Command::Down(target, mode) => {
                self.aimed(target)?.for_each(|lane| lane.set_blackout(now, Some(*mode)));
            }
            Command::Up(target) => {
                self.aimed(target)?.for_each(|lane| lane.set_blackout(now, None));
            }
            Command::Set(target, setting) => {
                self.aimed(target)?.for_each(|lane| lane.set(now, *setting));
            }
            Command::Nat(link, order) => {
                let places = Target::whole(link).places(&self.names)?;
                let obeyed = places[0].is_some_and(|up| self.nats[up / 2].obey(*order));
                if !obeyed {
                    return Err(format!("link {link} has no NAT; set {link} nat on"));
                }
            }
            Command::Stats => {}
        }
        Ok(())
    }

    fn report(&mut self, _now: Instant) -> Vec<LinkReport> {
        let pairs = self.lanes.chunks_exact(2).zip(&self.names);
        pairs
            .map(|(lanes, name)| LinkReport {
                link: name.clone(),
                up: lanes[0].report(),
                down: lanes[1].report(),
            })
            .collect()
    }
}
