//! Restarts of paths and changes at run time, like those of a gateway's carriers.
//!
//! A race repeatedly starts new connections on the same carrier until one becomes a path. If there
//! are too many, it gives up the oldest. The old connection stays until the session closes it.

use std::time::Duration;

use polyrail_model::{LinkForecast, LinkOutlook, PathWish};
use polyrail_scheduler::ChainSpec;
use polyrail_session::{PathReport, TunnelKey};

use super::transport::{Packet, PacketKind};
use super::{Side, Timer, Verbosity, World};

impl World {
    /// Races this many new connections for a carrier's path.
    pub fn race_attempts(&mut self, carrier: usize, attempts: u32) {
        self.say(Verbosity::Operations, || format!("carrier {carrier} races {attempts} attempts"));
        self.begin_race(carrier, attempts);
        self.drain();
    }

    /// A path of this carrier makes no progress.
    pub(super) fn restart_path(&mut self, carrier: usize) {
        let idle = self.carriers[carrier].race.left == 0;
        if self.habits.restarts && idle && self.carriers[carrier].enabled {
            self.say(Verbosity::Operations, || format!("carrier {carrier} restarts its path"));
            self.begin_race(carrier, ATTEMPTS);
        }
    }

    fn begin_race(&mut self, carrier: usize, attempts: u32) {
        let race = &mut self.carriers[carrier].race;
        race.number += 1;
        race.left = attempts;
        let number = race.number;
        self.timer(Duration::ZERO, Timer::Attempt { carrier, race: number });
    }

    pub(super) fn attempt(&mut self, carrier: usize, number: u32) {
        let race = &mut self.carriers[carrier].race;
        if race.number != number || race.left == 0 {
            return;
        }
        race.alive.retain(|(id, _)| {
            self.connections.get(id).is_some_and(|connection| connection.ends[0].is_some())
        });
        let (alive, oldest) = (race.alive.len(), race.alive.first().copied());
        self.timer(INTERVAL, Timer::Attempt { carrier, race: number });
        if let Some((oldest, since)) = oldest.filter(|_| alive >= ALIVE_MAX) {
            if self.now < since + self.chance_of(carrier) {
                return;
            }
            self.carriers[carrier].race.alive.remove(0);
            self.give_up(carrier, oldest);
        }
        self.carriers[carrier].race.left -= 1;
        if let Some(id) = self.start(carrier) {
            self.coverage.attempts += 1;
            self.carriers[carrier].race.alive.push((id, self.now));
        }
    }

    /// The least lifetime of an attempt, so that an answer can arrive.
    fn chance_of(&self, carrier: usize) -> Duration {
        let name = &self.carriers[carrier].spec.name;
        let sessions = self.status(Side::Gateway).sessions;
        let paths = sessions.iter().flat_map(|session| &session.paths);
        let own = paths.filter(|path| path.carrier == *name && !path.unproven);
        let srtt = own.map(|path| path.srtt).max();
        INTERVAL * ALIVE_MAX as u32 + 2 * srtt.unwrap_or(SRTT_UNKNOWN)
    }

    /// Gives up an attempt. The cloud learns of it if the packet arrives.
    fn give_up(&mut self, carrier: usize, connection: usize) {
        let packet = Packet { connection, kind: PacketKind::Rst };
        self.carriers[carrier].send(self.now, Side::Gateway, packet);
        self.end_down(connection, Side::Gateway, "attempt given up");
    }

    /// A tunnel became a path: its race ends.
    pub(super) fn on_path(&mut self, side: Side, tunnel: TunnelKey) {
        let Some(&winner) = self.nodes[side as usize].tunnels.get(&tunnel) else { return };
        let Some(carrier) = self.connections.get(&winner).map(|c| c.carrier) else { return };
        let race = &mut self.carriers[carrier].race;
        let runs = race.alive.iter().any(|(id, _)| *id == winner);
        if side == Side::Cloud || !runs {
            return;
        }
        race.left = 0;
        let others = std::mem::take(&mut race.alive);
        self.carriers[carrier].current = Some(winner);
        for (other, _) in others.into_iter().filter(|(other, _)| *other != winner) {
            self.give_up(carrier, other);
        }
    }

    pub(super) fn on_report(&mut self, side: Side, tunnel: TunnelKey, report: PathReport) {
        let Some(connection) = self.nodes[side as usize].tunnels.get(&tunnel) else { return };
        let Some(carrier) = self.connections.get(connection).map(|c| c.carrier) else { return };
        if side == Side::Gateway && report == PathReport::Stalled {
            self.restart_path(carrier);
        }
    }

    /// New connections of a carrier use the other tunnel mode from now on, and one is started at
    /// once.
    pub fn switch_mode(&mut self, carrier: usize) {
        let stream = &mut self.carriers[carrier].spec.stream;
        *stream = !*stream;
        self.race(carrier);
    }

    /// Both sides use this chain from now on.
    pub fn set_chain(&mut self, chain: &ChainSpec) {
        self.say(Verbosity::Operations, || format!("chain {chain:?}"));
        for node in &mut self.nodes {
            node.settings.chain = chain.clone();
            node.endpoint.set_chain(self.now, chain.clone());
            node.dirty = true;
        }
        self.drain();
    }

    /// One side uses another limit of flows and other reinjection from now on.
    pub fn set_settings(&mut self, side: Side, flows_max: usize, stall: bool) {
        self.say(Verbosity::Operations, || format!("{side:?} {flows_max} flows, stall {stall}"));
        let node = &mut self.nodes[side as usize];
        node.settings.flows_max = flows_max;
        node.settings.stall = stall;
        node.flows_most = node.flows_most.max(flows_max);
        node.endpoint.set_settings(self.now, node.settings.clone());
        node.dirty = true;
        self.drain();
    }

    /// Both sides receive this forecast of a carrier after that time; `None`: no forecast.
    pub fn foresee(&mut self, after: Duration, carrier: usize, forecast: Option<LinkForecast>) {
        let number = self.forecasts.len();
        self.forecasts.push((carrier, forecast));
        self.timer(after, Timer::Forecast { number });
    }

    pub(super) fn tell_forecast(&mut self, number: usize) {
        let (carrier, forecast) = self.forecasts[number];
        let name = self.carriers[carrier].spec.name.clone();
        for node in &mut self.nodes {
            for session in node.endpoint.status().sessions {
                node.endpoint.set_forecast(self.now, session.session, &name, forecast);
            }
            node.dirty = true;
        }
    }

    /// The side that sends receives this outlook of a carrier after that time.
    pub fn expect(&mut self, after: Duration, carrier: usize, side: Side, outlook: LinkOutlook) {
        let number = self.outlooks.len();
        self.outlooks.push((carrier, side, outlook));
        self.timer(after, Timer::Outlook { number });
    }

    pub(super) fn tell_outlook(&mut self, number: usize) {
        let (carrier, side, outlook) = self.outlooks[number].clone();
        let name = self.carriers[carrier].spec.name.clone();
        let node = &mut self.nodes[side as usize];
        for session in node.endpoint.status().sessions {
            node.endpoint.set_outlook(self.now, session.session, &name, outlook.clone());
        }
        node.dirty = true;
    }

    /// A carrier becomes a backup or an ordinary carrier.
    pub fn set_backup(&mut self, carrier: usize, backup: bool) {
        self.say(Verbosity::Operations, || format!("carrier {carrier} backup {backup}"));
        let spec = &mut self.carriers[carrier].spec;
        spec.backup = backup;
        let node = &mut self.nodes[Side::Gateway as usize];
        let wish = if backup { PathWish::BACKUP } else { PathWish::default() };
        node.endpoint.set_wish(self.now, &spec.name, wish);
        node.dirty = true;
        self.drain();
    }

    /// One side reports on a carrier's newest path.
    pub fn report_path(&mut self, side: Side, carrier: usize, report: PathReport) {
        let Some(current) = self.carriers[carrier].current else { return };
        let node = &mut self.nodes[side as usize];
        let tunnel = node.tunnels.iter().find(|(_, id)| **id == current).map(|(key, _)| *key);
        if let Some(tunnel) = tunnel {
            node.endpoint.report_path(self.now, tunnel, report);
            node.dirty = true;
            self.drain();
        }
    }
}

/// The attempts of a restart. Like the gateway it starts one every 100 ms, at most three at a time,
/// so that a lost handshake costs little and the carrier is not flooded.
const ATTEMPTS: u32 = 100;
const INTERVAL: Duration = Duration::from_millis(100);
const ALIVE_MAX: usize = 3;
/// A round trip to a far cloud on a bad link.
const SRTT_UNKNOWN: Duration = Duration::from_secs(1);
