//! Sessions with schedulerlets of their own.

mod parts;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use polyrail_model::{
    Bytes, Destination, FlowId, HostName, NodeRole, PathId, PathWish, SessionKey, TunnelMode, Unit,
    UserId,
};
use polyrail_scheduler::{Chain, ChainSpec, Handler, Input, PathSets, SEGMENT, Schedulerlet};

use super::outlet::Outlet;
use super::session::Session;
use crate::event::TunnelKey;
use crate::limits::{ASIDE_MAX, RECOVERY, STALL_MIN, WAKE_APART};
use crate::path::Manner;
use crate::settings::Settings;
use crate::wire::{Decoder, Frame, Terms};

/// Flows below this number wait for this time; other flows send at once.
struct Waits(u64, Duration);

impl Schedulerlet for Waits {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        if input.segment.flow.0 < self.0 {
            sets.wake_at(input.now + self.1);
        } else {
            sets.select(0);
        }
    }
}

/// The maximum that each path may have in flight.
struct Cap(Bytes);

impl Handler for Cap {
    fn cap(&self, _path: PathId) -> Option<Bytes> {
        Some(self.0)
    }
}

/// The runs sent: their flows and lengths.
#[derive(Default)]
struct Wire(Vec<(FlowId, usize)>);

impl Outlet for Wire {
    fn send(&mut self, _tunnel: TunnelKey, _unit: Unit, frames: &[u8]) -> usize {
        let each = |frame: Frame<'_>| match frame {
            Frame::Open { open, data } => self.0.push((open.flow, data.len())),
            Frame::Data { flow, data, .. } => self.0.push((flow, data.len())),
            _ => {}
        };
        Decoder::default().feed(frames, each).unwrap();
        1 << 20
    }

    fn withdraw(&mut self, _tunnel: TunnelKey, _tag: u64) {}
}

#[allow(clippy::disallowed_methods)] // a base for the clock of these tests
fn base() -> Instant {
    Instant::now()
}

/// A session with one path and room for a megabyte.
fn session(now: Instant, chain: Chain) -> Session {
    let mut session = Session::new(now, SessionKey(1), NodeRole::Gateway, Settings::default());
    session.agree(Terms { window: 1 << 20, credit: 16 << 20 });
    let manner =
        Manner { carrier: "a", wish: PathWish::default(), mode: TunnelMode::Tls, proven: true };
    assert!(session.add_path(now, PathId(1), TunnelKey(1), manner));
    session.set_room(TunnelKey(1), 1 << 20);
    session.chain = chain;
    session
}

fn write(session: &mut Session, now: Instant, user: u64, bytes: usize) -> FlowId {
    let server = Destination::Name(HostName::new("a.example").unwrap(), 80);
    let id = session.open(now, UserId(user), server).unwrap().flow;
    assert_eq!(session.write(now, id, &vec![0; bytes]), bytes);
    id
}

#[test]
fn window_of_a_new_flow_is_a_quarter_of_the_memory_and_at_most_4_mib() {
    for (memory_mib, window_kib) in [(1, 256), (16, 4_096), (64, 4_096)] {
        let settings = Settings { memory: Bytes::from_mib(memory_mib), ..Settings::default() };
        let session = Session::new(base(), SessionKey(1), NodeRole::Cloud, settings);
        let terms = Terms { window: window_kib << 10, credit: memory_mib << 20 };
        assert_eq!(session.terms(), terms, "{memory_mib} MiB");
    }
}

#[test]
fn waiting_flows_do_not_keep_others_from_a_free_path() {
    for (waiting, most) in [(20, 1), (500, 5)] {
        let now = base();
        let rule = Waits(waiting + 1, Duration::from_secs(1));
        let mut session = session(now, Chain::new(vec![Box::new(rule)]));
        (0..waiting).for_each(|_| _ = write(&mut session, now, 1, 100));
        // Its user has sent: the waiting flows have their turn first.
        session.turns.queue.charge(UserId(2), 1 << 20, now);
        write(&mut session, now, 2, 20_000);
        let mut wire = Wire::default();
        let mut turns = 0;
        while wire.0.is_empty() {
            session.transmit(now, &mut wire);
            turns += 1;
            assert!(turns <= most, "{waiting} flows delay it");
            assert!(session.next_timeout().is_some_and(|at| at <= now + Duration::from_secs(1)));
        }
        // Flows are numbered when they are first sent.
        assert!(wire.0.iter().all(|&(flow, _)| flow == FlowId(1)));
        // No turn exceeds its bound, and no flow is forgotten.
        assert!(
            session.turns.aside.len() <= waiting as usize && turns >= waiting / ASIDE_MAX as u64
        );
        session.chain = Chain::new(vec![Box::new(Waits(0, Duration::ZERO))]);
        for _ in 0..2 * most {
            session.transmit(now, &mut wire);
        }
        for flow in 2..=waiting + 1 {
            assert!(wire.0.contains(&(FlowId(flow), 100)), "{flow} of {waiting}");
        }
    }
}

#[test]
fn runs_are_short_while_an_interactive_flow_waits_for_another_path() {
    let now = base();
    for (interactive, longest) in [(true, 2 * SEGMENT), (false, 4 * SEGMENT)] {
        let rule = Waits(2, Duration::from_secs(1));
        let mut session = session(now, Chain::new(vec![Box::new(rule)]));
        let first = write(&mut session, now, 1, if interactive { 100 } else { 20_000 });
        let bulk = write(&mut session, now, 1, 60_000);
        assert!(first < bulk);
        let mut wire = Wire::default();
        session.transmit(now, &mut wire);
        assert_eq!(wire.0[0], (FlowId(1), longest as usize));
    }
}

#[test]
fn rule_that_waits_until_now_is_asked_again_a_little_later() {
    let now = base();
    let mut session = session(now, Chain::new(vec![Box::new(Waits(9, Duration::ZERO))]));
    write(&mut session, now, 1, 100);
    session.transmit(now, &mut Wire::default());
    assert_eq!(session.turns.wake_at, Some(now + WAKE_APART));
}

#[test]
fn caps_of_a_chain_end_with_it() {
    let now = base();
    let rule = || -> Vec<Box<dyn Schedulerlet>> { vec![Box::new(Waits(0, Duration::ZERO))] };
    let chain = Chain::new(rule()).with(vec![Box::new(Cap(Bytes(SEGMENT)))]);
    let mut session = session(now, chain);
    write(&mut session, now, 1, 20_000);
    let mut wire = Wire::default();
    session.transmit(now, &mut wire);
    let room = |session: &Session| session.paths.views(now, &session.chain)[0].room;
    assert_eq!((wire.0.len(), room(&session)), (1, Bytes::ZERO));
    // One without handlers.
    let chain = ChainSpec::named("round_robin").unwrap();
    assert!(!chain.build().has_handlers());
    session.set_settings(&Settings { chain, ..Settings::default() });
    assert_eq!(room(&session), Bytes(1 << 20));
    session.transmit(now, &mut wire);
    assert_eq!(wire.0.iter().map(|&(_, bytes)| bytes).sum::<usize>(), 20_000);
}

/// A path that stalls has held its data back since its last sign of life.
#[test]
fn stalls_measure_how_long_recovery_takes() {
    let begin = base();
    let mut session = session(begin, Chain::new(vec![Box::new(Waits(0, Duration::ZERO))]));
    let manner =
        Manner { carrier: "b", wish: PathWish::default(), mode: TunnelMode::Tls, proven: true };
    assert!(session.add_path(begin, PathId(2), TunnelKey(2), manner));
    session.set_room(TunnelKey(2), 1 << 20);
    write(&mut session, begin, 1, 20_000);
    session.transmit(begin, &mut Wire::default());
    assert_eq!(session.paths.recovery(), RECOVERY, "nothing was measured");
    let mut now = begin;
    while !session.paths.get(0).unwrap().stall.stalled {
        now = session.next_timeout().unwrap().max(now + Duration::from_millis(1));
        session.on_timeout(now);
        assert!(now < begin + Duration::from_secs(10), "it does not stall");
    }
    assert!(now - begin >= STALL_MIN);
    let measured = (RECOVERY * 3 + (now - begin)) / 4;
    assert_eq!(session.paths.recovery(), measured);
    // The scheduler gets it.
    let seen = Arc::new(Mutex::new(None));
    session.chain = Chain::new(vec![Box::new(Sees(seen.clone()))]);
    write(&mut session, now, 1, 100);
    session.transmit(now, &mut Wire::default());
    assert_eq!(*seen.lock().unwrap(), Some(measured));
}

/// Notes the recovery of the last segment, which waits.
struct Sees(Arc<Mutex<Option<Duration>>>);

impl Schedulerlet for Sees {
    fn apply(&mut self, _: &mut PathSets, input: &Input<'_>) {
        *self.0.lock().unwrap() = Some(input.segment.recovery);
    }
}
