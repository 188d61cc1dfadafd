//! Strangers by the thousand, over UDP and TCP at once: gateways still get in, and memory stays
//! bounded.

#![allow(clippy::unwrap_used)] // also in the helpers

mod common;

use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{Cloud, Gateway, identities};
use polyrail_identity::{SystemClock, TlsIdentity};
use polyrail_model::Identity;
use polyrail_relay::RelayEvent;
use polyrail_session::Event;
use polyrail_tunnel::{CarrierSpec, quic};
use socket2::{Domain, Socket, Type};

/// Enough addresses to take all places of handshakes over TCP.
const SOURCES: &[[u8; 4]] =
    &[[127, 0, 0, 2], [127, 0, 0, 3], [127, 0, 0, 4], [127, 0, 0, 5], [127, 0, 0, 6]];

/// First datagrams of clients that say nothing more, each of another connection.
fn initials(identity: &TlsIdentity, count: usize) -> Vec<Vec<u8>> {
    let cloud = Identity::new("c").unwrap();
    let mut client = quic::Client::new(identity.clone(), cloud, Arc::new(SystemClock)).unwrap();
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    sink.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let to = sink.local_addr().unwrap();
    let mut buffer = [0; 2_048];
    let mut all = Vec::new();
    while all.len() < count {
        let tunnel = client.connect(Instant::now(), &CarrierSpec::default(), to).unwrap();
        let (length, from) = sink.recv_from(&mut buffer).unwrap();
        drop(tunnel);
        all.push(buffer[..length].to_vec());
        // What else it sent: the rest of its hello, and its farewell.
        sink.set_nonblocking(true).unwrap();
        while sink.recv_from(&mut buffer).is_ok_and(|(_, other)| other == from) {}
        sink.set_nonblocking(false).unwrap();
    }
    all
}

struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn start(act: impl Fn(&AtomicBool, &AtomicU64) + Send + 'static) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (stop.clone(), sent.clone());
        let thread = Some(std::thread::spawn(move || act(&stopped, &counted)));
        Self { stop, sent, thread }
    }

    /// Over UDP: from 256 ports, 5,000 datagrams a second.
    fn udp(cloud: SocketAddr, initials: Vec<Vec<u8>>) -> Self {
        Self::start(move |stop, sent| {
            let ports: Vec<UdpSocket> =
                (0..256).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
            for (at, initial) in initials.iter().cycle().enumerate() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let _ = ports[at % ports.len()].send_to(initial, cloud);
                sent.fetch_add(1, Ordering::Relaxed);
                if at % 50 == 49 {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        })
    }

    /// Over TCP from these addresses in turn: 3,000 connections that never say a whole word, 200
    /// new ones a second.
    fn tcp(cloud: SocketAddr, sources: &'static [[u8; 4]]) -> Self {
        Self::start(move |stop, sent| {
            let mut held = VecDeque::new();
            for source in sources.iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let connected = connect(*source, cloud);
                if let Ok(mut stream) = connected {
                    if held.len() % 2 == 0 {
                        // The head of a record whose body never comes.
                        let _ = stream.write_all(&[22, 3, 1, 2, 0]);
                    }
                    held.push_back(stream);
                    sent.fetch_add(1, Ordering::Relaxed);
                }
                if held.len() > 3_000 {
                    held.pop_front();
                }
                if held.len() > 1_500 {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        })
    }

    fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.sent.load(Ordering::Relaxed)
    }
}

/// A TCP connection from this address.
fn connect(source: [u8; 4], to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((source, 0)).into())?;
    socket.connect_timeout(&to.into(), Duration::from_millis(100))?;
    Ok(socket.into())
}

/// Tries until a path is up, as a gateway does; how long that took.
fn get_in(identity: &TlsIdentity, cloud: SocketAddr, quic: bool) -> Duration {
    let begun = Instant::now();
    let mut gateway = Gateway::new(identity);
    let mut tunnel = None;
    while begun.elapsed() < Duration::from_secs(30) {
        let key = *tunnel.get_or_insert_with(|| match quic {
            true => gateway.connect_quic("a", cloud),
            false => gateway.connect_tls("a", cloud),
        });
        for event in gateway.turn() {
            match event {
                RelayEvent::Session(Event::PathUp { .. }) => return begun.elapsed(),
                RelayEvent::TunnelClosed { tunnel: gone, .. } if gone == key => tunnel = None,
                _ => {}
            }
        }
    }
    panic!("not in after {:?}", begun.elapsed());
}

#[test]
fn unauthenticated_clients_use_bounded_memory_and_block_no_gateway() {
    polyrail_relay::raise_descriptor_limit();
    let (folder, _, (identity, _)) = identities();
    let dir = folder.path();
    let initials = initials(&identity, 2_000);
    let cloud = Cloud::start(dir, "", "");
    let calm = [true, false].map(|quic| get_in(&identity, cloud.address, quic));
    let before = cloud.memory();

    let (udp, tcp) = (Flood::udp(cloud.address, initials), Flood::tcp(cloud.address, SOURCES));
    let mut memory = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(Duration::from_millis(200));
        memory.push(cloud.memory());
    }
    let (code, status) = cloud.ask("GET /v1/status", "");
    assert_eq!(code, 200, "{status}");
    let mut times = Vec::new();
    for _ in 0..4 {
        times.push([true, false].map(|quic| get_in(&identity, cloud.address, quic)));
        memory.push(cloud.memory());
    }
    let (datagrams, connections) = (udp.end(), tcp.end());
    let most = memory.iter().copied().max().unwrap();
    println!("calm: quic, tls in {calm:?}");
    println!("flooded by {datagrams} Initials and {connections} connections: {times:?}");
    println!("memory: {} KiB before, at most {} KiB", before >> 10, most >> 10);
    println!("{}", status["tunnels"]);
    let half_open = status["tunnels"]["half_open"].as_u64().unwrap();
    assert!((500..=2_048).contains(&half_open), "{half_open} half-open");
    assert!(status["tunnels"]["retries_sent"].as_u64().unwrap() > 1_000);
    assert!(most - before < MEMORY_MAX, "{} KiB more", (most - before) >> 10);
    assert!(cloud.events("alarm").len() < 200, "strangers' events are bounded");
}

#[test]
fn one_address_holds_a_quarter_of_the_handshakes_over_tcp() {
    polyrail_relay::raise_descriptor_limit();
    let (folder, _, (identity, _)) = identities();
    let dir = folder.path();
    let cloud = Cloud::start(dir, "", "");
    let flood = Flood::tcp(cloud.address, &[[127, 0, 0, 2]]);
    let half_open = || cloud.ask("GET /v1/status", "").1["tunnels"]["half_open"].as_u64().unwrap();
    let (mut most, mut slowest) = (0, Duration::ZERO);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        std::thread::sleep(Duration::from_millis(200));
        most = most.max(half_open());
    }
    for _ in 0..10 {
        slowest = slowest.max(get_in(&identity, cloud.address, false));
        most = most.max(half_open());
    }
    println!("{} connections: at most {most} half-open, in after {slowest:?}", flood.end());
    assert!((200..=256).contains(&most), "{most} half-open");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

#[test]
fn full_udp_side_does_not_block_tcp() {
    let (folder, _, (identity, _)) = identities();
    let dir = folder.path();
    // Nobody has to prove an address, so strangers fill it up.
    let bounds = "[tunnel]\nhalf_open_max = 64\nretry_above = 65536\n";
    let cloud = Cloud::start(dir, "", bounds);
    let udp = Flood::udp(cloud.address, initials(&identity, 300));
    let half_open = || cloud.ask("GET /v1/status", "").1["tunnels"]["half_open"].as_u64().unwrap();
    let begun = Instant::now();
    while half_open() < 64 {
        assert!(begun.elapsed() < Duration::from_secs(10), "it does not fill up");
    }
    get_in(&identity, cloud.address, false);
    assert_eq!(half_open(), 64);
    udp.end();
}

#[test]
fn connection_ids_contain_the_server_id() {
    let (folder, _, (identity, _)) = identities();
    let dir = folder.path();
    // Each first datagram is answered with a Retry, which gives an id.
    let cloud = Cloud::start(dir, "", "[tunnel]\nretry_above = 0\nserver_id = 0x1234\n");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket.send_to(&initials(&identity, 1)[0], cloud.address).unwrap();
    let mut answer = [0; 2_048];
    let length = socket.recv(&mut answer).unwrap();
    // RFC 9000 17.2.5: flags, version, the client's id behind its length, then the server's.
    let given = 6 + usize::from(answer[5]);
    assert!(length > given + 17, "{:?}", &answer[..length]);
    assert_eq!(answer[given..given + 3], [16, 0x12, 0x34]);
}

/// 1,024 handshakes over TCP and 256 over QUIC, at 64 KiB each.
const MEMORY_MAX: u64 = (1024 + 256) * 64 * 1024;
