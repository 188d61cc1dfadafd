//! One passenger dials a silent server without end, or holds every descriptor: everybody else still
//! reaches theirs.

#![allow(clippy::unwrap_used)] // also in the helpers

mod common;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use common::{Cloud, Gateway, issue};
use polyrail_identity::{Authority, NodeRole};
use polyrail_model::{Destination, UserId};
use polyrail_relay::RelayEvent;
use polyrail_session::{Event, FlowKey, Settings};
use socket2::{Domain, Socket, Type};

const ATTACKER: UserId = UserId(66);
const OTHER: UserId = UserId(7);

/// A server that never answers a SYN: its queue is full, and nobody accepts.
struct Silent {
    _socket: Socket,
    _queued: Vec<TcpStream>,
    address: SocketAddr,
}

impl Silent {
    fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
        let queued = std::iter::from_fn(connect).collect();
        Self { _socket: socket, _queued: queued, address }
    }
}

/// What became of the connections of one user.
#[derive(Debug, Default)]
struct Outcome {
    pending: BTreeMap<FlowKey, Instant>,
    reached: Vec<Duration>,
    refused: usize,
}

impl Outcome {
    fn open(&mut self, gateway: &mut Gateway, user: UserId, to: SocketAddr) {
        let now = Instant::now();
        match gateway.relay.endpoint().open(now, user, Destination::Address(to)) {
            Ok(flow) => drop(self.pending.insert(flow, now)),
            Err(_) => self.refused += 1,
        }
    }

    fn take(&mut self, event: &RelayEvent) {
        match event {
            RelayEvent::Session(Event::Dialed { flow }) => {
                let begun = self.pending.remove(flow);
                self.reached.extend(begun.map(|begun| begun.elapsed()));
            }
            RelayEvent::Session(Event::Reset { flow, .. } | Event::Closed { flow }) => {
                self.refused += usize::from(self.pending.remove(flow).is_some());
            }
            _ => {}
        }
    }
}

/// Opens a flow of [`OTHER`] every 25 ms for this time, while [`ATTACKER`] opens `rate` flows a
/// second to the silent server.
fn connect_under_attack(
    gateways: &mut [Gateway],
    (server, silent): (SocketAddr, SocketAddr),
    rate: u64,
    time: Duration,
) -> Vec<Outcome> {
    let begun = Instant::now();
    let (mut attempts, mut attacks, mut attack) = (0_u128, 0_u64, Outcome::default());
    let mut others: Vec<Outcome> = gateways.iter().map(|_| Outcome::default()).collect();
    while begun.elapsed() < time + Duration::from_secs(1) {
        let elapsed = begun.elapsed().min(time);
        while u128::from(attacks) < elapsed.as_millis() * u128::from(rate) / 1000 {
            attack.open(&mut gateways[0], ATTACKER, silent);
            attacks += 1;
        }
        let measured = elapsed.checked_sub(time / 2).unwrap_or_default();
        if attempts < measured.as_millis() / 25 {
            attempts += 1;
            for (gateway, other) in gateways.iter_mut().zip(&mut others) {
                other.open(gateway, OTHER, server);
            }
        }
        for (at, gateway) in gateways.iter_mut().enumerate() {
            for event in gateway.turn() {
                if at == 0 {
                    attack.take(&event);
                }
                others[at].take(&event);
            }
        }
    }
    println!("{attacks} connects of the attacker, {} refused", attack.refused);
    others
}

#[test]
fn dials_of_one_user_to_a_silent_server_delay_nobody_else() {
    polyrail_relay::raise_descriptor_limit();
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let authority = Authority::create(dir, "Test", false).unwrap();
    issue(&authority, dir, "c", NodeRole::Cloud);
    // Without the cap on the user's flows, so that its dials alone are counted.
    let session = "[session]\nuser_flows_max = 100000\n";
    let cloud = Cloud::start(dir, "", &format!("[access]\nallow = [\"127.0.0.0/8\"]\n{session}"));
    let mut gateways: Vec<Gateway> = ["train-7", "train-8"]
        .map(|name| Gateway::new(&issue(&authority, dir, name, NodeRole::Gateway).0))
        .into();
    for gateway in &mut gateways {
        let settings = Settings { user_flows_max: 100_000, ..Settings::default() };
        gateway.relay.endpoint().set_settings(Instant::now(), settings);
        let tunnel = gateway.connect_tls("a", cloud.address);
        gateway.until_path(tunnel);
    }
    let (listener, silent) = (TcpListener::bind("127.0.0.1:0").unwrap(), Silent::new());
    let server = listener.local_addr().unwrap();
    std::thread::spawn(move || for _ in listener.incoming() {});
    let places = (server, silent.address);
    let number = format!("{:016x}", ATTACKER.0);
    for outcome in connect_under_attack(&mut gateways, places, 2_500, Duration::from_secs(4)) {
        let mut times = outcome.reached;
        times.sort();
        let (reached, failed) = (times.len(), outcome.refused + outcome.pending.len());
        println!("{reached} reached, {failed} failed, slowest {:?}", times.last());
        assert!(reached > 50 && failed == 0, "{reached} reached, {failed} failed");
        assert!(times[reached * 95 / 100] < Duration::from_millis(250), "{times:?}");
    }
    let (code, users) = cloud.ask("GET /v1/users", "");
    assert_eq!(code, 200, "{users}");
    let attacker = users["users"].as_array().unwrap().iter().find(|user| user["user"] == *number);
    let attacker = attacker.unwrap_or_else(|| panic!("the attacker is not in {users}"));
    assert_eq!((&attacker["gateway"], attacker["dials"].as_u64()), (&"train-7".into(), Some(128)));
    assert!(attacker["refused"]["quota"].as_u64() > Some(1_000), "{attacker}");
    let line = cloud.until_logged("flow refused");
    assert!(line.contains(&number) && line.contains("train-7"), "{line}");
}

#[test]
fn open_flows_of_one_user_leave_others_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let authority = Authority::create(dir, "Test", false).unwrap();
    issue(&authority, dir, "c", NodeRole::Cloud);
    let cloud = Cloud::start_within(256, dir, "", "[access]\nallow = [\"127.0.0.0/8\"]\n");
    let mut gateway = Gateway::new(&issue(&authority, dir, "train-7", NodeRole::Gateway).0);
    let tunnel = gateway.connect_tls("a", cloud.address);
    gateway.until_path(tunnel);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    let (mut attack, mut other) = (Outcome::default(), Outcome::default());
    let turns = |gateway: &mut Gateway, outcomes: &mut [&mut Outcome]| {
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            for event in gateway.turn() {
                outcomes.iter_mut().for_each(|outcome| outcome.take(&event));
            }
        }
    };
    for _ in 0..30 {
        (0..10).for_each(|_| attack.open(&mut gateway, ATTACKER, server));
        turns(&mut gateway, &mut [&mut attack]);
    }
    println!("attacker: {} reached, {} refused", attack.reached.len(), attack.refused);
    assert!(attack.reached.len() > 100 && attack.refused > 100);
    for _ in 0..20 {
        other.open(&mut gateway, OTHER, server);
        turns(&mut gateway, &mut [&mut attack, &mut other]);
    }
    assert_eq!((other.reached.len(), other.refused, other.pending.len()), (20, 0, 0));
    assert!(cloud.log().contains("shedding a flow of the heaviest user"));
}
