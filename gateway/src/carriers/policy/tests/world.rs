//! One emulated carrier and its policy.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyrail_config::{Mode, Restart};
use polyrail_model::{Bitrate, TunnelMode};

use crate::carriers::policy::{
    Action, AttemptId, Ending, EndingKind, Link, Notice, Pace, Policy, Reading, Rtt, Start,
};

pub(super) const QUIC: TunnelMode = TunnelMode::Quic;
pub(super) const TLS: TunnelMode = TunnelMode::Tls;

/// The behaviour of the carrier.
pub(super) struct Net {
    pub(super) rtt: Duration,
    pub(super) dark: bool,
    pub(super) udp: bool,
    pub(super) tcp: bool,
    /// Each QUIC connection fails like this after a round trip.
    pub(super) udp_ends: Option<EndingKind>,
    /// Bytes a second in each mode, while there is traffic.
    pub(super) udp_rate: u64,
    pub(super) tcp_rate: u64,
    /// Addresses without a server.
    pub(super) dead: Vec<SocketAddr>,
}

struct Conn {
    start: Start,
    begun: Instant,
    next: Option<(Instant, Step)>,
    path: Option<u64>,
    superseded: bool,
    bytes: u64,
    /// The handshake finished.
    up: bool,
    /// It sent its greeting as early data, which was lost.
    early: bool,
    lost: bool,
    moved_at: Instant,
    /// The session has reported a stall.
    stalled: bool,
    /// When a lost first packet is retransmitted, and the wait after that.
    again: Option<(Instant, Duration)>,
    /// A path's transport backs off: when it sends next, and the wait after that.
    stuck: Option<(Instant, Duration)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Step {
    Up,
    Path,
}

pub(super) struct World {
    pub(super) policy: Policy,
    pub(super) net: Net,
    pub(super) traffic: bool,
    /// The session reports a stall of the path for another reason.
    pub(super) stalled: bool,
    /// Connections greet in early data.
    pub(super) early: bool,
    /// Transports resume at once after a blackout.
    pub(super) nimble: bool,
    begun: Instant,
    now: Instant,
    conns: Vec<Conn>,
    numbers: u64,
    pub(super) started: Vec<(Duration, Start)>,
    pub(super) told: Vec<(Duration, Notice)>,
    /// The maximum number of concurrent connections, in addition to paths.
    pub(super) alive_max: usize,
    /// Bytes over each mode's paths.
    pub(super) moved: [u64; 2],
    pub(super) local: std::net::IpAddr,
}

impl World {
    pub(super) fn new(mode: Mode) -> Self {
        Self::with(mode, Pace { restart: Restart::default(), frugal: false, probing: false }, 1)
    }

    pub(super) fn with(mode: Mode, pace: Pace, addresses: u16) -> Self {
        let addresses = (1..=addresses).map(address).collect();
        let now = Instant::now();
        let net = Net {
            rtt: ms(60),
            dark: false,
            udp: true,
            tcp: true,
            udp_ends: None,
            udp_rate: 2_500_000,
            tcp_rate: 2_500_000,
            dead: Vec::new(),
        };
        Self {
            policy: Policy::new(pace, true, mode, addresses, 7),
            net,
            traffic: true,
            stalled: false,
            early: false,
            nimble: false,
            begun: now,
            now,
            conns: Vec::new(),
            numbers: 0,
            started: Vec::new(),
            told: Vec::new(),
            alive_max: 0,
            moved: [0; 2],
            local: "10.0.0.2".parse().unwrap(),
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    pub(super) fn at(&self) -> Duration {
        self.now - self.begun
    }

    /// Lets time pass.
    pub(super) fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.step();
            self.now += TICK;
        }
    }

    /// Lets time pass until a condition holds; panics after `max`.
    pub(super) fn run_until(&mut self, max: Duration, what: impl Fn(&Self) -> bool) -> Duration {
        let begun = self.now;
        while !what(self) {
            assert!(self.now - begun < max, "not within {max:?}: {:#?}", self.told);
            self.step();
            self.now += TICK;
        }
        self.now - begun
    }

    /// The mode of the path in use, if packets are delivered.
    pub(super) fn carries(&self) -> Option<TunnelMode> {
        let id = self.policy.in_use()?;
        let conn = self.conns.iter().find(|conn| conn.start.attempt == id)?;
        (self.passes(conn) && conn.stuck.is_none()).then_some(conn.start.mode)
    }

    pub(super) fn in_use(&self) -> Option<AttemptId> {
        self.policy.in_use()
    }

    pub(super) fn starts(&self, since: Duration) -> Vec<(Duration, TunnelMode)> {
        let later = self.started.iter().filter(|(at, _)| *at >= since);
        later.map(|(at, start)| (*at - since, start.mode)).collect()
    }

    pub(super) fn tells(&self, which: impl Fn(&Notice) -> bool) -> usize {
        self.told.iter().filter(|(_, notice)| which(notice)).count()
    }

    pub(super) fn demotions(&self) -> usize {
        self.tells(|notice| matches!(notice, Notice::Demoted { again: false, .. }))
    }

    /// When the connection in use was started.
    pub(super) fn in_use_since(&self) -> Duration {
        let id = self.policy.in_use().unwrap();
        self.started.iter().find(|(_, start)| start.attempt == id).unwrap().0
    }

    /// One side suspects that the path in use is policed.
    pub(super) fn report_policed(&mut self, rate: u64) {
        if let Some(id) = self.policy.in_use() {
            self.policy.on_policed(self.now, id, Bitrate::from_bytes_per_second(rate));
            self.obey();
        }
    }

    pub(super) fn set_link(&mut self, link: Link) {
        self.policy.on_link(self.now, link);
        self.obey();
    }

    pub(super) fn up(addresses: &[&str]) -> Link {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Link::Up { index: 3, addresses }
    }

    /// The transports of all paths give up.
    pub(super) fn kill_paths(&mut self) {
        let paths: Vec<AttemptId> = self
            .conns
            .iter()
            .filter(|conn| conn.path.is_some())
            .map(|conn| conn.start.attempt)
            .collect();
        for id in paths {
            self.end(id, EndingKind::Silent);
        }
    }

    fn step(&mut self) {
        for index in 0..self.conns.len() {
            self.advance(index);
        }
        if let Some(kind) = self.net.udp_ends {
            let due = |conn: &&Conn| self.now >= conn.begun + self.net.rtt;
            let quic = self.conns.iter().filter(|conn| conn.start.mode == QUIC);
            let over: Vec<AttemptId> = quic
                .filter(|conn| conn.path.is_none())
                .filter(due)
                .map(|conn| conn.start.attempt)
                .collect();
            over.into_iter().for_each(|id| self.end(id, kind));
        }
        self.take_steps();
        self.policy.turn(self.now);
        self.obey();
        let unready = self.conns.iter().filter(|conn| conn.path.is_none()).count();
        self.alive_max = self.alive_max.max(unready);
        assert!(self.conns.len() <= 7, "bounded");
        let due = self.policy.next_timeout(self.now);
        assert!(due.is_none_or(|at| at > self.now), "no time that stays due: {:?}", self.policy);
    }

    fn passes(&self, conn: &Conn) -> bool {
        let open = if conn.start.mode == QUIC { self.net.udp } else { self.net.tcp };
        open && !self.net.dark && !self.net.dead.contains(&conn.start.address)
    }

    fn advance(&mut self, index: usize) {
        let passes = self.passes(&self.conns[index]);
        let rtt = self.net.rtt;
        let rate = match self.conns[index].start.mode {
            TunnelMode::Quic => self.net.udp_rate,
            TunnelMode::Tls => self.net.tcp_rate,
        };
        let conn = &mut self.conns[index];
        if conn.next.is_none()
            && conn.path.is_none()
            && let Some((at, wait)) = conn.again
            && at <= self.now
        {
            if passes {
                let step = if conn.up { Step::Path } else { Step::Up };
                conn.next = Some((self.now + rtt * trips(conn.start.mode), step));
            }
            conn.again = Some((at + wait * 2, wait * 2));
        }
        if conn.path.is_none() {
            let rtt = conn.up.then_some(Rtt { smoothed: rtt, variance: rtt / 2 });
            let id = conn.start.attempt;
            return self.policy.observe(self.now, id, Reading { rtt, ..Reading::default() });
        }
        let idle = !self.traffic || conn.superseded;
        let passes = conn.sends(self.now, passes, self.nimble);
        if passes && !idle {
            let bytes = rate * TICK.as_millis() as u64 / 1_000;
            conn.bytes += bytes;
            self.moved[usize::from(conn.start.mode == TLS)] += bytes;
        }
        if passes || idle {
            conn.moved_at = self.now;
        }
        let reading = Reading {
            rtt: Some(Rtt { smoothed: rtt, variance: rtt / 8 }),
            acked: conn.bytes,
            received: 0,
            local: Some(self.local),
        };
        let id = conn.start.attempt;
        let stalled = self.stalled || self.now - conn.moved_at >= (rtt * 7 / 2).max(ms(300));
        let was_stalled = std::mem::replace(&mut conn.stalled, stalled);
        self.policy.observe(self.now, id, reading);
        match (was_stalled, stalled) {
            (false, true) => self.policy.set_stalled(id, true),
            (true, false) => self.policy.set_stalled(id, false),
            _ => {}
        }
    }

    fn take_steps(&mut self) {
        let ids: Vec<AttemptId> = self.conns.iter().map(|conn| conn.start.attempt).collect();
        for id in ids {
            let Some(index) = self.conns.iter().position(|conn| conn.start.attempt == id) else {
                continue;
            };
            let passes = self.passes(&self.conns[index]);
            let conn = &mut self.conns[index];
            let Some((at, step)) = conn.next.filter(|(at, _)| *at <= self.now) else { continue };
            conn.next = None;
            if !passes {
                continue;
            }
            if step == Step::Up {
                conn.up = true;
                conn.next = match (conn.early, conn.lost) {
                    (false, _) => Some((at + self.net.rtt, Step::Path)),
                    (true, false) => Some((at, Step::Path)),
                    (true, true) => None,
                };
                conn.again = Some((at + GREETING_AGAIN, GREETING_AGAIN));
                self.policy.on_up(self.now, id);
            } else {
                self.numbers += 1;
                conn.path = Some(self.numbers);
                conn.moved_at = self.now;
                self.policy.on_path(self.now, id, self.numbers);
                self.supersede(index);
            }
        }
    }

    /// The session lets go of all older paths.
    fn supersede(&mut self, newest: usize) {
        for index in 0..self.conns.len() {
            let conn = &mut self.conns[index];
            if index == newest || conn.path.is_none() || conn.superseded {
                continue;
            }
            conn.superseded = true;
            self.policy.on_refused(self.now, conn.start.attempt, "superseded");
        }
        let over: Vec<AttemptId> = self
            .conns
            .iter()
            .filter(|conn| conn.superseded)
            .map(|conn| conn.start.attempt)
            .collect();
        over.into_iter().for_each(|id| self.end(id, EndingKind::Silent));
    }

    fn obey(&mut self) {
        while let Some(action) = self.policy.poll() {
            match action {
                Action::Start(start) => self.begin(start),
                Action::Close { attempt, .. } => self.end(attempt, EndingKind::Silent),
                Action::Tell(notice) => self.told.push((self.at(), notice)),
            }
        }
    }

    fn begin(&mut self, start: Start) {
        self.started.push((self.at(), start));
        let again = match start.mode {
            TunnelMode::Quic => start.rtt.map_or(ms(1_000), |rtt| rtt * 3),
            TunnelMode::Tls => ms(1_000),
        };
        let mut conn = Conn {
            start,
            begun: self.now,
            next: None,
            path: None,
            superseded: false,
            bytes: 0,
            up: false,
            early: self.early && start.early,
            lost: false,
            moved_at: self.now,
            stalled: false,
            again: Some((self.now + again, again)),
            stuck: None,
        };
        if self.passes(&conn) {
            conn.next = Some((self.now + self.net.rtt * trips(start.mode), Step::Up));
        }
        conn.lost = conn.next.is_none();
        let early = conn.early;
        self.conns.push(conn);
        if early {
            self.policy.on_early(start.attempt);
        }
    }

    pub(super) fn end(&mut self, id: AttemptId, kind: EndingKind) {
        let before = self.conns.len();
        self.conns.retain(|conn| conn.start.attempt != id);
        if self.conns.len() < before {
            let ending = Ending { kind, reason: "over".to_owned() };
            self.policy.on_closed(self.now, id, &ending);
        }
    }
}

impl Conn {
    /// Whether a path's transport gets something through now: after a blackout only when its
    /// backed-off timer fires.
    fn sends(&mut self, now: Instant, passes: bool, nimble: bool) -> bool {
        let (at, wait) = match self.stuck {
            None if passes => return true,
            None => (now + RTO, RTO),
            Some((at, wait)) if at <= now => (at + wait * 2, wait * 2),
            Some(waiting) => waiting,
        };
        let fires = nimble || self.stuck.is_some_and(|(at, _)| at <= now);
        self.stuck = (!(passes && fires)).then_some((at, wait));
        self.stuck.is_none()
    }
}

/// Round trips until the handshake is over.
fn trips(mode: TunnelMode) -> u32 {
    match mode {
        TunnelMode::Quic => 1,
        TunnelMode::Tls => 2,
    }
}

pub(super) fn address(host: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], host))
}

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// When a greeting that was lost in early data is sent again.
const GREETING_AGAIN: Duration = Duration::from_secs(1);
/// The first retransmission timeout.
const RTO: Duration = Duration::from_millis(200);
/// A step of the world.
const TICK: Duration = Duration::from_millis(5);
