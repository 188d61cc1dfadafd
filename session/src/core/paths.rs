//! The paths of a session: which of them may carry data, and the runs in flight on each.
//!
//! Of the paths of one carrier, the newest on which the peer is known to receive supersedes the
//! older ones; a cloud knows that from the JOIN, a gateway from the answer. Until then the older
//! ones continue, if they can. A superseded path that delivers keeps its runs and is closed when it
//! is drained. A superseded path that stalls is closed at once; others carry its runs, so they are
//! withdrawn from its tunnel.
//!
//! Invariant: `outstanding` of a path is the sum of the runs of all flows that are expected from
//! it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use polyrail_model::{Bytes, FlowId, PathId, Unit};
use polyrail_scheduler::{Chain, PathSet, PathView, SEGMENT, rank};

use super::flows::Flows;
use super::forecasts::Forecasts;
use super::outlet::Outlet;
use crate::carriers::{CARRIERS_MAX, CarrierNames};
use crate::delay::Common;
use crate::event::TunnelKey;
use crate::flow::Flow;
use crate::limits::{RECOVERY, STALL_MAX, STALL_QUEUE_MAX};
use crate::path::{Carried, Manner, Path, Standing};
use crate::settings::PathStatus;

#[derive(Debug)]
pub(crate) struct Paths {
    /// By slot; slots of lost paths are used again.
    slots: Vec<Option<Path>>,
    /// The names of the carriers that have had a path.
    pub names: CarrierNames,
    /// Some carrier has more than one path.
    pub rivalry: bool,
    pub forecasts: Forecasts,
    /// Units that need not arrive any more.
    withdrawn: Vec<(TunnelKey, u64)>,
    /// Since when there has been no path.
    pub alone_since: Option<Instant>,
    /// There has been a path.
    pub greeted: bool,
    /// When the session last sent, for snapshots.
    pub looked_at: Instant,
    /// When a datagram of a call was last sent.
    pub called_at: Option<Instant>,
    /// From the last progress of a path until it stalls, and others send its segments again:
    /// the mean of the last stalls.
    recovery: Duration,
}

/// The effect of progress on the paths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// The path was stalled.
    pub recovered: bool,
    /// The scheduler may use other paths than before.
    pub changed: bool,
}

/// The runs and control frames that a path gave up.
#[derive(Debug, Default)]
pub(crate) struct GivenUp {
    /// Sequence numbers that are not expected from the path any more.
    pub bytes: u64,
    /// The flows to which they belong.
    pub flows: BTreeSet<FlowId>,
    /// Flows whose control frames were not confirmed.
    pub unconfirmed: BTreeSet<FlowId>,
}

impl Paths {
    pub fn new(now: Instant) -> Self {
        Self {
            slots: Vec::new(),
            names: CarrierNames::default(),
            rivalry: false,
            forecasts: Forecasts::default(),
            withdrawn: Vec::new(),
            alone_since: Some(now),
            greeted: false,
            looked_at: now,
            called_at: None,
            recovery: RECOVERY,
        }
    }

    pub fn get(&self, slot: usize) -> Option<&Path> {
        self.slots.get(slot)?.as_ref()
    }

    pub fn get_mut(&mut self, slot: usize) -> Option<&mut Path> {
        self.slots.get_mut(slot)?.as_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Path> + Clone {
        self.slots.iter().flatten()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        self.slots.iter_mut().flatten()
    }

    /// The slots that have a path.
    pub fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        let used = self.slots.iter().enumerate().filter_map(|(i, p)| p.as_ref().map(|_| i));
        used.collect::<Vec<_>>().into_iter()
    }

    fn slots_where(&self, of: impl Fn(&Path) -> bool) -> Vec<usize> {
        self.slots().filter(|&slot| self.get(slot).is_some_and(&of)).collect()
    }

    fn position(&self, of: impl Fn(&Path) -> bool) -> Option<usize> {
        self.slots.iter().position(|path| path.as_ref().is_some_and(&of))
    }

    pub fn slot_of(&self, tunnel: TunnelKey) -> Option<usize> {
        self.position(|path| path.tunnel == tunnel)
    }

    pub fn slot_of_id(&self, id: PathId) -> Option<usize> {
        self.position(|path| path.id == id)
    }

    /// The other tunnels of this tunnel's carrier, the newest first.
    pub fn siblings(&self, tunnel: TunnelKey) -> Vec<TunnelKey> {
        let Some(path) = self.slot_of(tunnel).and_then(|slot| self.get(slot)) else {
            return Vec::new();
        };
        let same = |other: &&Path| other.carrier == path.carrier && other.tunnel != tunnel;
        let mut others: Vec<_> = self.iter().filter(same).map(|p| (p.id, p.tunnel)).collect();
        others.sort_unstable_by(|a, b| b.cmp(a));
        others.into_iter().map(|(_, tunnel)| tunnel).collect()
    }

    /// The greatest round-trip time of a live path; 100 ms when there is none.
    pub fn slowest_rtt(&self) -> Duration {
        let live = self.iter().filter(|path| !path.stall.stalled);
        live.map(|path| path.link.srtt()).max().unwrap_or(Duration::from_millis(100))
    }

    // Paths come and go.

    /// The oldest path that was superseded, or is unproven while its carrier has a newer one: it
    /// makes room for another, because the delayed attempts of a restart may all arrive at once.
    pub fn spare(&self) -> Option<&Path> {
        let has_newer = |path: &Path| {
            self.iter().any(|other| other.carrier == path.carrier && other.id > path.id)
        };
        let spare = self.iter().filter(|p| p.is_superseded() || (!p.proven && has_newer(p)));
        spare.min_by_key(|path| path.id)
    }

    pub fn add(&mut self, now: Instant, id: PathId, tunnel: TunnelKey, manner: Manner<'_>) {
        let mut path = Path::new(now, id, tunnel, manner);
        path.carrier_number = self.number_of(manner.carrier);
        let same = self.iter().filter(|other| other.carrier == manner.carrier);
        if let Some(newest) = same.max_by_key(|other| other.id) {
            path.link.guess = Some(newest.link.srtt());
        }
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot] = Some(path);
        (self.alone_since, self.greeted) = (None, true);
        if manner.proven {
            self.take_over(now, slot);
        }
        self.choose();
    }

    /// The number of a carrier. If there are too many names, that of its other paths, else a free
    /// one.
    fn number_of(&mut self, carrier: &str) -> u32 {
        if let Some(number) = self.names.number(carrier) {
            return number;
        }
        let known = self.iter().find(|path| path.carrier == carrier);
        let is_free = |number: &u32| self.iter().all(|path| path.carrier_number != *number);
        let known = known.map(|path| path.carrier_number);
        known.or_else(|| (CARRIERS_MAX as u32..).find(is_free)).unwrap_or_default()
    }

    /// Removes a path, which must have given up its runs.
    pub fn remove(&mut self, now: Instant, slot: usize) -> Option<Path> {
        let lost = self.slots.get_mut(slot)?.take()?;
        debug_assert!(lost.carried.is_empty(), "a lost path carries nothing");
        self.withdrawn.retain(|(of, _)| *of != lost.tunnel);
        if !lost.is_superseded() {
            self.reinstate(&lost.carrier);
        }
        self.choose();
        if self.iter().next().is_none() {
            self.alone_since = Some(now);
        }
        Some(lost)
    }

    /// The peer receives on this path, so it supersedes older paths of its carrier. Greetings may
    /// be reordered: the path number decides, on both sides.
    fn take_over(&mut self, now: Instant, slot: usize) {
        let Some(path) = self.get(slot).filter(|path| !path.is_superseded()) else { return };
        let (id, carrier) = (path.id, path.carrier.clone());
        let (mut newer, mut older) = (false, false);
        for rival in self.iter_mut().filter(|path| path.carrier == carrier) {
            newer |= rival.id > id && rival.is_sound();
            if rival.id < id && !rival.is_superseded() {
                (rival.standing, older) = (Standing::Superseded, true);
            }
        }
        if let Some(path) = self.get_mut(slot) {
            path.standing = if newer { Standing::Superseded } else { Standing::Current };
            if older {
                // Its PONG is the progress that retires the older ones.
                path.pings.soon(now);
            }
        }
    }

    /// The superseding path is lost, or stalls before it delivers: the path before it continues.
    fn reinstate(&mut self, carrier: &str) {
        let rivals = || self.iter().filter(|path| path.carrier == carrier);
        if rivals().any(Path::is_sound) {
            return;
        }
        let older =
            rivals().filter(|path| path.is_superseded() && path.standing != Standing::Closing);
        let newest = older.map(|path| path.id).max();
        for path in self.iter_mut().filter(|path| Some(path.id) == newest) {
            path.standing = Standing::Current;
        }
    }

    /// Decides which paths the scheduler may use.
    fn choose(&mut self) {
        let sound = self.iter().any(Path::is_sound);
        let rivals = |path: &Path| {
            let (id, carrier) = (path.id, path.carrier.clone());
            self.iter().filter(move |rival| rival.id != id && rival.carrier == carrier)
        };
        let newest_hope = |path: &Path| {
            let mut newer = rivals(path).filter(|rival| rival.id > path.id);
            !sound && !newer.any(|rival| !rival.stall.stalled && !rival.is_superseded())
        };
        let hides = |path: &Path| {
            path.stall.stalled || path.is_superseded() || !(path.proven || newest_hope(path))
        };
        let hidden: Vec<bool> = self.iter().map(hides).collect();
        let rivalry = self.iter().any(|path| rivals(path).next().is_some());
        self.rivalry = rivalry;
        self.iter_mut().zip(hidden).for_each(|(path, hidden)| path.hidden = hidden);
    }

    // Progress and stalls.

    /// The peer receives on the path; it has `delivered` unless it was only welcomed.
    pub fn progress(&mut self, now: Instant, slot: usize, delivered: bool) -> Progress {
        let Some(path) = self.get_mut(slot) else { return Progress::default() };
        let recovered = path.stall.progress(now);
        let changed = !std::mem::replace(&mut path.proven, true) || recovered;
        path.delivered |= delivered;
        if recovered {
            tracing::debug!(path = path.id.0, carrier = path.carrier, "path recovered");
        }
        if changed {
            self.take_over(now, slot);
            self.choose();
        }
        if delivered && self.rivalry {
            self.relieve_older(slot);
        }
        Progress { recovered, changed }
    }

    /// The newest path of a carrier has made progress: older ones may retire.
    fn relieve_older(&mut self, slot: usize) {
        let Some(path) = self.get(slot).filter(|path| !path.is_superseded()) else { return };
        let (id, carrier) = (path.id, path.carrier.clone());
        let older = |path: &&mut Path| path.carrier == carrier && path.id < id;
        let waits = |path: &&mut Path| path.standing == Standing::Superseded;
        let relieved = self.iter_mut().filter(older).filter(waits);
        relieved.for_each(|path| path.standing = Standing::Relieved);
    }

    /// The paths that are due to stall; superseded ones even if paths are not `judged`.
    pub fn overdue(&self, now: Instant, judged: bool) -> Vec<usize> {
        let overdue = |path: &Path| path.stalls_at(judged).is_some_and(|at| now >= at);
        self.slots_where(overdue)
    }

    /// How long a failing path holds its segments.
    pub fn recovery(&self) -> Duration {
        self.recovery
    }

    /// The path stalls. Returns whether it was the current one of its carrier.
    pub fn stall(&mut self, now: Instant, slot: usize) -> bool {
        let Some(path) = self.get_mut(slot) else { return false };
        let silent = path.stall.quiet(now).min(STALL_MAX + STALL_QUEUE_MAX);
        let held = path.stall.outstanding > 0 && !path.is_superseded();
        path.stall.stalled = true;
        path.pings.soon(now);
        tracing::debug!(path = path.id.0, carrier = path.carrier, "path stalled");
        let current = !path.is_superseded();
        let young = (current && !path.delivered).then(|| path.carrier.clone());
        if let Some(carrier) = young {
            self.reinstate(&carrier);
        }
        if held {
            self.recovery = (self.recovery * 3 + silent) / 4;
        }
        self.choose();
        current
    }

    /// PINGs paths on which received user data has paused, if more is expected.
    pub fn ping_paused(&mut self, now: Instant, expected: bool) {
        for path in self.iter_mut() {
            if path.pings.begins_pause(now, path.link.srtt()) && expected && !path.is_superseded() {
                path.pings.soon(now);
            }
        }
    }

    /// Marks the superseded paths that are drained or given up as closing, and returns them.
    pub fn close_drained(&mut self, now: Instant) -> Vec<usize> {
        let over = |path: &Path| {
            path.standing == Standing::Relieved && (path.gives_up() || path.is_drained(now))
        };
        let slots = self.slots_where(over);
        for &slot in &slots {
            if let Some(path) = self.get_mut(slot) {
                path.standing = Standing::Closing;
            }
        }
        slots
    }

    // Runs in flight.

    /// A run of a flow was sent on these paths, with `bytes` of data; `sent_us` is in its frame.
    pub fn carry(
        &mut self,
        (now, sent_us): (Instant, u64),
        on: PathSet,
        run: Carried,
        bytes: u64,
        flows: &Flows,
    ) {
        for slot in on.iter() {
            let Some(path) = self.get_mut(slot) else { continue };
            path.stall.sent(now, run.end - run.start);
            path.sent += bytes;
            path.link.run_sent(sent_us, path.sent + path.datagrams_sent);
            path.carried.push(run, |run| is_out(run, flows));
        }
    }

    /// The hidden paths whose runs other paths can take.
    pub fn to_give_up(&self) -> Vec<usize> {
        if self.iter().all(|path| path.hidden) {
            return Vec::new();
        }
        let owes = |path: &Path| path.stall.outstanding > 0 || path.pings.has_unconfirmed();
        self.slots_where(|path| path.gives_up() && owes(path))
    }

    /// The path gives up its runs; with `forget` it may carry the same runs again.
    pub fn give_up(&mut self, slot: usize, forget: bool, flows: &mut Flows) -> GivenUp {
        let mut given_up = GivenUp::default();
        let Some(path) = self.get_mut(slot) else { return given_up };
        given_up.unconfirmed = path.pings.take_unconfirmed();
        for &Carried { flow: id, start, end } in path.carried.iter() {
            let Some(flow) = flows.get_mut(id) else { continue };
            let bytes = flow.send.runs.give_up(start, end, slot, forget);
            if bytes > 0 {
                given_up.bytes += bytes;
                given_up.flows.insert(id);
            }
        }
        if forget {
            path.carried.clear();
        }
        path.stall.settle(given_up.bytes);
        given_up
    }

    /// This many sequence numbers are not expected from these paths any more.
    pub fn settle(&mut self, length: u64, live: PathSet) {
        for slot in live.iter() {
            if let Some(path) = self.get_mut(slot) {
                path.stall.settle(length);
            }
        }
    }

    /// Removes settled entries from the front of the path's runs.
    pub fn trim_carried(&mut self, slot: usize, flows: &Flows) {
        let Some(path) = self.get_mut(slot) else { return };
        path.carried.trim(|run| is_out(run, flows));
    }

    /// Withdraws units from all paths that carry them.
    pub fn withdraw(&mut self, units: Vec<(u64, PathSet)>) {
        for (tag, on) in units {
            let tunnels = on.iter().filter_map(|slot| self.get(slot).map(|path| path.tunnel));
            let withdrawn: Vec<_> = tunnels.map(|tunnel| (tunnel, tag)).collect();
            self.withdrawn.extend(withdrawn);
        }
    }

    /// Withdraws all units of a path, so that its tunnel does not retransmit them while it closes.
    pub fn withdraw_all(&mut self, slot: usize, flows: &Flows) {
        let Some(path) = self.get(slot) else { return };
        let ids: BTreeSet<FlowId> = path.carried.iter().map(|run| run.flow).collect();
        let units =
            ids.into_iter().filter_map(|id| flows.get(id)).flat_map(|f| f.send.runs.all_units());
        let tunnel = path.tunnel;
        let on_path = units.filter(|(_, on)| on.contains(slot));
        let withdrawn: Vec<_> = on_path.map(|(tag, _)| (tunnel, tag)).collect();
        self.withdrawn.extend(withdrawn);
    }

    /// The flow is over: its runs are not expected any more.
    pub fn forget_flow(&mut self, flow: &Flow) {
        flow.send.runs.out().for_each(|(length, live)| self.settle(length, live));
    }

    /// The bytes that the path had sent up to the mark and that are still in flight.
    pub fn ahead_of(&self, on: PathSet, mark: u64) -> Bytes {
        let path = on.iter().next().and_then(|slot| self.get(slot));
        let arrived = path.map_or(mark, |path| path.sent.saturating_sub(path.stall.outstanding));
        Bytes(mark.saturating_sub(arrived))
    }

    // Sending.

    /// Passes withdrawals to the tunnels.
    pub fn send_withdrawals(&mut self, outlet: &mut dyn Outlet) {
        for (tunnel, tag) in self.withdrawn.drain(..) {
            outlet.withdraw(tunnel, tag);
        }
    }

    /// Sends bytes on a path; the tunnel returns its remaining room.
    pub fn send(&mut self, slot: usize, unit: Unit, bytes: &[u8], outlet: &mut dyn Outlet) {
        let Some(path) = self.get_mut(slot) else { return };
        path.set_room(outlet.send(path.tunnel, unit, bytes));
        path.charge(bytes.len());
    }

    /// The rate limits earn what may be sent by now.
    pub fn refill(&mut self, now: Instant) {
        self.iter_mut().for_each(|path| path.refill(now));
    }

    /// When a path whose rate limit is used up may send again.
    pub fn limited_until(&self) -> Option<Instant> {
        self.iter().filter(|path| path.room > 0).filter_map(Path::limited_until).min()
    }

    /// Sends control frames on a path; bytes beyond its room are counted.
    pub fn send_control(&mut self, slot: usize, bytes: &[u8], outlet: &mut dyn Outlet) {
        self.send(slot, Unit::Control, bytes, outlet);
        if let Some(path) = self.get_mut(slot)
            && path.room == 0
        {
            path.control_debt += bytes.len();
        }
    }

    /// Usable paths of the first rank that has any, if they take control frames; the fastest first.
    pub fn live_slots(&self) -> Vec<usize> {
        let live = || self.slots().filter_map(|slot| Some((slot, self.get(slot)?)));
        let live = || live().filter(|(_, path)| !path.hidden);
        let first = live().map(|(_, path)| path.wish.rank).min();
        let takes = |path: &Path| path.takes_control() && Some(path.wish.rank) == first;
        let mut able: Vec<(usize, &Path)> = live().filter(|(_, path)| takes(path)).collect();
        able.sort_by_key(|(_, path)| path.link.srtt());
        able.into_iter().map(|(slot, _)| slot).collect()
    }

    /// Stalled paths that take control: one of them may have recovered unnoticed, and a path that
    /// counts as live may be dark.
    pub fn stalled_slots(&self) -> Vec<usize> {
        let stalls = |path: &Path| {
            path.stall.stalled
                && !path.is_superseded()
                && !path.wish.is_backup()
                && path.takes_control()
        };
        self.slots_where(stalls)
    }

    /// Whether the path may carry a copy: it has room, and its bytes cost no money.
    pub fn takes_copies(&self, slot: usize) -> bool {
        self.get(slot).is_some_and(|path| path.room() > 0 && !path.wish.metered)
    }

    pub fn has_room(&self, slot: usize) -> bool {
        self.get(slot).is_some_and(|path| path.room() > 0)
    }

    /// The fastest usable path other than `but` that takes control frames, by rank.
    pub fn control_slot(&self, but: Option<usize>) -> Option<usize> {
        let paths = self.slots.iter().enumerate();
        let able = paths.filter_map(|(slot, path)| Some((slot, path.as_ref()?)));
        let able =
            able.filter(|&(slot, path)| !path.hidden && path.takes_control() && Some(slot) != but);
        able.min_by_key(|(_, path)| (path.wish.rank, path.link.srtt())).map(|(slot, _)| slot)
    }

    // The scheduler's view.

    /// The scheduler's view of all slots.
    pub fn views(&self, now: Instant, chain: &Chain) -> Vec<PathView> {
        let common = self.common(now);
        let view = |path: &Option<Path>| match path {
            Some(path) => self.view(now, path, common.as_ref(), chain),
            // A slot without a path is never available.
            None => PathView { stalled: true, ..PathView::default() },
        };
        let mut views: Vec<PathView> = self.slots.iter().map(view).collect();
        rank(&mut views);
        views
    }

    /// The scheduler's view of one path.
    pub fn view_of(&self, now: Instant, slot: usize, chain: &Chain) -> Option<PathView> {
        Some(self.view(now, self.get(slot)?, self.common(now).as_ref(), chain))
    }

    fn view(&self, now: Instant, path: &Path, common: Option<&Common>, chain: &Chain) -> PathView {
        let relative = common.and_then(|common| common.relative(&path.delay));
        PathView {
            room: Bytes(left_by_cap(path, chain).unwrap_or(u64::MAX).min(path.room())),
            calls: self.calls(now),
            forecast: self.forecasts.forecast(now, &path.carrier),
            look_ahead: self.forecasts.look_ahead(now, &path.carrier),
            ..path.view(now, relative)
        }
    }

    /// Whether a passenger calls in this direction.
    pub fn calls(&self, now: Instant) -> bool {
        self.called_at.is_some_and(|at| now.saturating_duration_since(at) < CALL_OVER)
    }

    fn common(&self, now: Instant) -> Option<Common> {
        let rtt_min = self.iter().map(|path| path.link.rtt_min()).min().unwrap_or_default();
        Common::of(now, rtt_min, self.iter().map(|path| &path.delay))
    }

    /// Whether any path is usable and has room.
    pub fn any_available(&self, chain: &Chain) -> bool {
        self.iter().any(|path| {
            !path.hidden && path.room() > 0 && left_by_cap(path, chain).is_none_or(|left| left > 0)
        })
    }

    /// The bytes that may be sent before a handler's cap is reached.
    pub fn left_by_cap(&self, slot: usize, chain: &Chain) -> Option<u64> {
        left_by_cap(self.get(slot)?, chain)
    }

    /// A snapshot of all paths.
    pub fn status(&self) -> Vec<PathStatus> {
        let common = self.common(self.looked_at);
        let relative = |path: &Path| common.as_ref()?.relative(&path.delay);
        self.iter().map(|path| path.status(self.looked_at, relative(path))).collect()
    }
}

/// A call that has sent nothing for so long is over.
const CALL_OVER: Duration = Duration::from_secs(1);

/// Whether any part of the run is in flight.
fn is_out(run: &Carried, flows: &Flows) -> bool {
    flows.get(run.flow).is_some_and(|flow| flow.send.runs.is_out(run.start, run.end))
}

/// The bytes that may be sent on a path before a handler's cap is reached. A cap is at least a
/// segment, so that an idle path always has room.
fn left_by_cap(path: &Path, chain: &Chain) -> Option<u64> {
    let cap = chain.cap(path.id)?.0.max(SEGMENT);
    Some(cap.saturating_sub(path.stall.outstanding))
}
