//! UDP that is held to a rate on its way: the cloud notices, and tells the gateway.

#![allow(clippy::unwrap_used)] // also in the helpers

mod common;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Cloud, Gateway, identities};
use polyrail_model::{Destination, UserId};
use polyrail_relay::RelayEvent;
use polyrail_session::{Event, PathReport};

const DELAY: Duration = Duration::from_millis(20);
/// 1 Mbit/s in bytes a second, and what may come at once.
const RATE: f64 = 125e3;
const BURST: f64 = 32e3;

/// A proxy between the gateway and the cloud that polices the downlink; gives the
/// address that stands for the cloud's.
fn way(cloud: SocketAddr, stop: Arc<AtomicBool>) -> SocketAddr {
    let near = UdpSocket::bind("127.0.0.1:0").unwrap();
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.connect(cloud).unwrap();
    for socket in [&near, &far] {
        socket.set_nonblocking(true).unwrap();
    }
    let address = near.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut gateway = None;
        let (mut up, mut down) = (VecDeque::new(), VecDeque::new());
        let mut buffer = [0; 2_048];
        let (mut tokens, mut refilled) = (BURST, Instant::now());
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            tokens = (tokens + RATE * (now - refilled).as_secs_f64()).min(BURST);
            refilled = now;
            while let Ok((length, from)) = near.recv_from(&mut buffer) {
                gateway = Some(from);
                up.push_back((now + DELAY, buffer[..length].to_vec()));
            }
            while let Ok(length) = far.recv(&mut buffer) {
                if tokens >= length as f64 {
                    tokens -= length as f64;
                    down.push_back((now + DELAY, buffer[..length].to_vec()));
                }
            }
            while up.front().is_some_and(|(at, _)| *at <= now) {
                let _ = far.send(&up.pop_front().unwrap().1);
            }
            while down.front().is_some_and(|(at, _)| *at <= now) {
                let _ = near.send_to(&down.pop_front().unwrap().1, gateway.unwrap());
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    });
    address
}

/// A server that sends without end.
fn source() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 1]);
                while stream.write_all(&[7; 65_536]).is_ok() {}
            });
        }
    });
    address
}

#[test]
fn policed_downlink_is_reported_to_the_gateway() {
    let (folder, _, (identity, _)) = identities();
    let dir = folder.path();
    let cloud = Cloud::start(dir, "", "[access]\nallow = [\"127.0.0.0/8\"]\n");
    let stop = Arc::new(AtomicBool::new(false));
    let through = way(cloud.address, stop.clone());
    let mut gateway = Gateway::new(&identity);
    let tunnel = gateway.connect_quic("a", through);
    gateway.until_path(tunnel);
    let begun = Instant::now();
    let to = Destination::Address(source());
    let flow = gateway.relay.endpoint().open(begun, UserId(1), to).unwrap();
    gateway.relay.endpoint().write(begun, flow, b"!");
    let mut told = None;
    while told.is_none() {
        assert!(begun.elapsed() < Duration::from_secs(20), "nobody notices the policer");
        for event in gateway.turn() {
            if let RelayEvent::Session(Event::PathReport { tunnel: of, report }) = event
                && let PathReport::Policed { rate } = report
            {
                assert_eq!(of, tunnel);
                told = Some(rate.as_mbps());
            }
        }
        let now = Instant::now();
        let endpoint = gateway.relay.endpoint();
        let read = endpoint.readable(flow).iter().map(|piece| piece.len()).sum();
        endpoint.consume(now, flow, read);
    }
    stop.store(true, Ordering::Relaxed);
    let rate = told.unwrap();
    println!("told after {:?}: {rate:.2} Mbit/s", begun.elapsed());
    assert!((0.3..3.0).contains(&rate));
    let alarms = cloud.events("alarm");
    assert_eq!(alarms[0]["path"], "train-7:a", "{alarms:?}");
    assert!(alarms[0]["message"].as_str().unwrap().contains("policed"), "{alarms:?}");
}
