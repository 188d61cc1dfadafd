//! The daemon as a process, with a gateway of this process at the other end.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::{Cloud, Gateway, identities};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use polyrail_model::{Destination, HostName, UserId};
use polyrail_relay::RelayEvent;
use polyrail_session::{Event, ResetReason};
use polyrail_tunnel::CloseReason;

#[test]
fn congestion_control_of_a_carrier_is_set_and_failed_dials_are_logged() {
    let (folder, _, (identity, _)) = identities();
    let dir = folder.path();
    let cloud = Cloud::start(dir, "", "[carrier_congestion]\nsatellite = \"reno\"\n");
    let mut gateway = Gateway::new(&identity);
    for carrier in ["lte", "satellite"] {
        let tunnel = gateway.connect_tls(carrier, cloud.address);
        gateway.until_path(tunnel);
    }
    let line = cloud.until_logged("congestion control set");
    assert!(line.contains("satellite") && line.contains("reno"), "{line}");

    let closed: SocketAddr = "127.0.0.1:9".parse().unwrap();
    let named = Destination::Name(HostName::new("localhost").unwrap(), 9);
    for destination in [Destination::Address(closed), named] {
        let endpoint = gateway.relay.endpoint();
        endpoint.open(Instant::now(), UserId(1), destination.clone()).unwrap();
        let told = gateway.until("reset", |event| match event {
            RelayEvent::Session(Event::Reset { reason, .. }) => Some(reason),
            _ => None,
        });
        let line = cloud.until_logged(&format!("cannot reach {destination}: "));
        assert!(line.contains("train-7") && line.contains(&format!("{told:?}")), "{line}");
        assert_eq!(told, ResetReason::Forbidden);
    }
    let log = cloud.log();
    assert_eq!(log.matches("congestion control set").count(), 1, "{log}");
}

#[test]
fn mode_decides_which_transports_are_served() {
    let (folder, _, (identity, _)) = identities();
    let dir = folder.path();
    for (mode, quic_works, tls_works) in
        [("auto", true, true), ("quic", true, false), ("tls", false, true)]
    {
        let cloud = Cloud::start(dir, &format!("mode = \"{mode}\""), "");
        let mut gateway = Gateway::new(&identity);
        let quic = gateway.connect_quic("a", cloud.address);
        if quic_works {
            gateway.until_path(quic);
            cloud.until_logged("mode=\"quic\"");
        }
        let tls = gateway.connect_tls("b", cloud.address);
        if tls_works {
            gateway.until_path(tls);
            cloud.until_logged("mode=\"tls\"");
        } else {
            gateway.until("refusal", |event| match event {
                RelayEvent::TunnelClosed { tunnel, .. } => (tunnel == tls).then_some(()),
                _ => None,
            });
        }
        let (code, status) = cloud.ask("GET /v1/status", "");
        assert_eq!((code, &status["role"]), (200, &"cloud".into()), "{status}");
        let paths = u64::from(quic_works) + u64::from(tls_works);
        assert_eq!(status["sessions"][0]["paths"], paths, "{mode}: {status}");
        assert_eq!(gateway.relay.tunnel(quic).is_some_and(|view| view.up), quic_works);
    }
}

#[test]
fn path_resumes_with_early_data_and_drains() {
    let (folder, _, (identity, _)) = identities();
    let dir = folder.path();
    let mut cloud = Cloud::start(dir, "", "");
    let mut gateway = Gateway::new(&identity);
    let hold = gateway.connect_tls("hold", cloud.address);
    gateway.until_path(hold);
    let mut last = hold;
    for (round, carrier) in ["a", "b"].into_iter().enumerate() {
        let connect = |gateway: &mut Gateway| match round {
            0 => gateway.connect_quic(carrier, cloud.address),
            _ => gateway.connect_tls(carrier, cloud.address),
        };
        let first = connect(&mut gateway);
        gateway.until_path(first);
        // Tickets come behind the handshake.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(100) {
            gateway.turn();
        }
        last = connect(&mut gateway);
        let (mut early, mut path) = (false, false);
        gateway.until("path after early data", |event| {
            match event {
                RelayEvent::TunnelEarly { tunnel } => early |= tunnel == last,
                RelayEvent::Session(Event::PathUp { tunnel, .. }) => path |= tunnel == last,
                _ => {}
            }
            path.then_some(())
        });
        assert!(early, "{carrier}");
    }
    let limit = Instant::now() + Duration::from_secs(20);
    loop {
        let log = cloud.log();
        match log.matches("early data accepted").count() {
            2 => break,
            count => assert!(count < 2 && Instant::now() < limit, "{count} of 2:\n{log}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }

    kill(Pid::from_raw(cloud.process.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    let reason = gateway.until("end", |event| match event {
        RelayEvent::TunnelClosed { tunnel, reason, .. } => (tunnel == last).then_some(reason),
        _ => None,
    });
    assert_eq!(reason, CloseReason::PeerClosed);
    assert!(cloud.process.wait().unwrap().success());
    assert!(!dir.join("admin.sock").exists());
}
