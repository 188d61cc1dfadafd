//! How fast a tunnel is over loopback, one thread a side, and what it costs.
//!
//! `cargo bench -p polyrail-tunnel` prints one RESULT line a mode and unit size: the median of five
//! rounds, as Gbit/s and as processor seconds per GB of each side; QUIC with UDP segmentation
//! offload and without. Figures compare within one run only.

#![allow(clippy::unwrap_used)] // a bench may stop at the first failure

#[path = "../tests/common/mod.rs"]
mod common;

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::pki::Authority;
use common::{TestClock, World, client, loopback, name, server};
use mio::{Events, Interest, Poll, Token};
use polyrail_model::Unit;
use polyrail_tunnel::quic;
use polyrail_tunnel::tls::{Listener, Server};
use polyrail_tunnel::{CarrierSpec, Tunnel, TunnelEvent};

const ROUNDS: usize = 5;
const ROUND_TIME: Duration = Duration::from_secs(1);
/// A full record, the session's largest run with its header, and one segment with its header.
const UNITS: [usize; 3] = [16_384, 16_100, 1_420];

fn main() {
    if std::env::var_os("POLYRAIL_GSO").is_some() {
        return report("quic_without_gso", quic_round);
    }
    idle();
    report("tls", round);
    report("quic", quic_round);
    // The offload is chosen when a socket is opened, for a whole process.
    let this = std::env::current_exe().unwrap();
    let status = Command::new(this).env("POLYRAIL_GSO", "off").status().unwrap();
    assert!(status.success());
}

fn report(mode: &str, round: impl Fn(usize) -> Round) {
    for unit in UNITS {
        let mut rounds: Vec<Round> = (0..ROUNDS).map(|_| round(unit)).collect();
        rounds.sort_by(|a, b| a.gbps.total_cmp(&b.gbps));
        let median = &rounds[ROUNDS / 2];
        println!(
            "RESULT tunnel_{mode} unit={unit} gbit_per_s={:.2} sender_cpu_s_per_gb={:.3} \
             receiver_cpu_s_per_gb={:.3} min={:.2} max={:.2}",
            median.gbps,
            median.sender_cost,
            median.receiver_cost,
            rounds[0].gbps,
            rounds[ROUNDS - 1].gbps
        );
    }
}

/// Prints what idle tunnels cost in this process' memory, both ends of each.
fn idle() {
    let resident_kib = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4.0
    };
    let authority = Authority::new();
    let clock = TestClock::new();
    let mut world = World::new();
    let address = world.serve(server(authority.cloud(), &clock));
    let mut gateway = client(authority.gateway(), &clock);
    let mut costs = Vec::new();
    for _ in 0..3 {
        let (before, begin) = (resident_kib(), world.ends.len());
        for _ in 0..IDLE_PAIRS {
            world.connect(&mut gateway, address);
        }
        world.until("all up", |ends| {
            ends.len() == begin + 2 * IDLE_PAIRS && ends.iter().all(|end| end.up.is_some())
        });
        costs.push((resident_kib() - before) / (2 * IDLE_PAIRS) as f64);
    }
    // The first also paid for the scratch buffer and the server's table of sessions.
    println!("RESULT tunnel_idle pairs={IDLE_PAIRS} kib_per_end={:.1}", costs[2]);
}

const IDLE_PAIRS: usize = 300;

struct Round {
    gbps: f64,
    sender_cost: f64,
    receiver_cost: f64,
}

/// The processor time of this thread, in seconds.
fn cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<u64>().unwrap() as f64 / 1e9
}

fn round(unit: usize) -> Round {
    let authority = Authority::new();
    let clock = TestClock::new();
    let listener = Listener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let cloud = server(authority.cloud(), &clock);
    let receiver = thread::spawn(move || receive(listener, cloud));
    let mut gateway = client(authority.gateway(), &clock);
    let spec = CarrierSpec { name: "a".to_owned(), ..CarrierSpec::default() };
    let tunnel = gateway.connect(Instant::now(), &spec, address).unwrap();
    let sender_cpu = send(tunnel, unit);
    let (bytes, took, receiver_cpu) = receiver.join().unwrap();
    let gb = bytes as f64 / 1e9;
    Round {
        gbps: gb * 8.0 / took.as_secs_f64(),
        sender_cost: sender_cpu / gb,
        receiver_cost: receiver_cpu / gb,
    }
}

/// Sends for a round's time; answers with the processor seconds it took.
fn send(mut tunnel: Box<dyn Tunnel>, unit: usize) -> f64 {
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(8);
    tunnel.register(poll.registry(), Token(0)).unwrap();
    let frames = vec![0x5a; unit];
    let (mut begin, mut sampled, mut tag) = (None, Instant::now(), 0);
    loop {
        let wait = wait(tunnel.as_ref());
        poll.poll(&mut events, Some(wait)).unwrap();
        let now = Instant::now();
        for event in &events {
            tunnel.on_ready(now, event.is_readable(), event.is_writable());
        }
        tunnel.on_timeout(now);
        match tunnel.poll_event() {
            Some(TunnelEvent::Early(_)) => {}
            Some(TunnelEvent::Up(_)) => begin = Some((now, cpu_s())),
            Some(TunnelEvent::Closed(reason)) => panic!("{reason}"),
            None => {}
        }
        while tunnel.receive(&mut |_| ()) > 0 {}
        let Some((start, cpu)) = begin else { continue };
        while tunnel.room() > 0 && start.elapsed() < ROUND_TIME {
            tag += 1;
            tunnel.send(Unit::Data { tag }, &frames);
            if sampled.elapsed() > Duration::from_millis(5) {
                sampled = Instant::now();
                tunnel.sample(sampled);
            }
        }
        tunnel.flush(now);
        if start.elapsed() >= ROUND_TIME {
            finish(tunnel, &mut poll);
            return cpu_s() - cpu;
        }
    }
}

/// How long to wait for an event: until the tunnel's next timeout, at most 5 ms.
fn wait(tunnel: &dyn Tunnel) -> Duration {
    let most = Duration::from_millis(5);
    tunnel
        .next_timeout()
        .map_or(most, |due| most.min(due.saturating_duration_since(Instant::now())))
}

fn finish(mut tunnel: Box<dyn Tunnel>, poll: &mut Poll) {
    let mut events = Events::with_capacity(8);
    tunnel.close(Instant::now());
    while tunnel.poll_event().is_none() {
        poll.poll(&mut events, Some(Duration::from_millis(5))).unwrap();
        let now = Instant::now();
        for event in &events {
            tunnel.on_ready(now, event.is_readable(), event.is_writable());
        }
        tunnel.on_timeout(now);
    }
}

/// Receives until the end; answers with bytes, time since the first and processor seconds.
fn receive(mut listener: Listener, mut cloud: Server) -> (u64, Duration, f64) {
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(8);
    poll.registry().register(&mut listener, Token(1), Interest::READABLE).unwrap();
    let mut tunnel: Option<Box<dyn Tunnel>> = None;
    let (mut bytes, mut begin) = (0, None);
    loop {
        poll.poll(&mut events, None).unwrap();
        let now = Instant::now();
        for event in &events {
            if event.token() == Token(1) {
                let (socket, _): (_, SocketAddr) = listener.accept().unwrap().unwrap();
                let accepted = tunnel.insert(cloud.accept(now, socket).unwrap());
                accepted.register(poll.registry(), Token(0)).unwrap();
            } else if let Some(tunnel) = &mut tunnel {
                tunnel.on_ready(now, event.is_readable(), event.is_writable());
            }
        }
        let Some(tunnel) = &mut tunnel else { continue };
        if let Some(TunnelEvent::Up(_)) = tunnel.poll_event() {
            begin = Some((now, cpu_s()));
        }
        while tunnel.receive(&mut |piece| bytes += piece.len() as u64) > 0 {}
        if let Some(TunnelEvent::Closed(_)) = tunnel.poll_event() {
            let (start, cpu) = begin.unwrap();
            return (bytes, start.elapsed(), cpu_s() - cpu);
        }
    }
}

fn quic_round(unit: usize) -> Round {
    let authority = Authority::new();
    let clock = TestClock::new();
    let (tell, told) = mpsc::channel();
    let identity = authority.cloud();
    let cloud_clock = clock.clone();
    let receiver = thread::spawn(move || {
        let options = quic::ServerOptions::default();
        let listener = quic::Listener::bind(loopback(), identity, options, cloud_clock).unwrap();
        tell.send(listener.local_addr().unwrap()).unwrap();
        receive_quic(listener)
    });
    let address = told.recv().unwrap();
    let clock: Arc<TestClock> = clock;
    let mut gateway = quic::Client::new(authority.gateway(), name("cloud"), clock).unwrap();
    let spec = CarrierSpec { name: "a".to_owned(), ..CarrierSpec::default() };
    let tunnel = gateway.connect(Instant::now(), &spec, address).unwrap();
    let sender_cpu = send(tunnel, unit);
    let (bytes, took, receiver_cpu) = receiver.join().unwrap();
    let gb = bytes as f64 / 1e9;
    Round {
        gbps: gb * 8.0 / took.as_secs_f64(),
        sender_cost: sender_cpu / gb,
        receiver_cost: receiver_cpu / gb,
    }
}

/// The same as [`receive`] for a listener that shares its socket among tunnels.
fn receive_quic(mut listener: quic::Listener) -> (u64, Duration, f64) {
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(8);
    poll.registry().register(&mut listener, Token(1), Interest::READABLE).unwrap();
    let mut tunnel: Option<Box<dyn Tunnel>> = None;
    let (mut bytes, mut begin, mut woken) = (0, None, Vec::new());
    loop {
        let most = Duration::from_millis(5);
        poll.poll(&mut events, Some(tunnel.as_deref().map_or(most, wait))).unwrap();
        let now = Instant::now();
        for event in &events {
            listener.on_ready(now, event.is_readable(), event.is_writable());
        }
        let mut more = true;
        while more {
            more = listener.receive(now).more;
            if let Some(mut accepted) = listener.accept() {
                accepted.register(poll.registry(), Token(0)).unwrap();
                tunnel = Some(accepted);
            }
            let Some(tunnel) = &mut tunnel else { continue };
            listener.take_woken(&mut woken);
            for _ in woken.drain(..) {
                tunnel.on_ready(now, true, true);
            }
            while tunnel.receive(&mut |piece| bytes += piece.len() as u64) > 0 {}
            tunnel.flush(now);
            while let Some(event) = tunnel.poll_event() {
                match event {
                    TunnelEvent::Early(_) => {}
                    TunnelEvent::Up(_) => begin = Some((now, cpu_s())),
                    TunnelEvent::Closed(_) => {
                        let (start, cpu) = begin.unwrap();
                        return (bytes, start.elapsed(), cpu_s() - cpu);
                    }
                }
            }
        }
        if let Some(tunnel) = &mut tunnel {
            tunnel.on_timeout(now);
        }
    }
}
