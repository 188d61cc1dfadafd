//! Reloads and operators' requests of the running cloud, under load.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{Cloud, Gateway, identities, issue};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use polyrail_identity::{Authority, NodeRole};
use polyrail_model::{Destination, UserId};
use polyrail_relay::RelayEvent;
use polyrail_session::{Event, FlowKey, ResetReason};

/// An echo server; its threads end with the test.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buffer = vec![0; 65_536];
                while let Ok(read @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..read]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// A flow that sends continuously and checks every echoed byte.
struct Load {
    flow: FlowKey,
    sent: u64,
    received: u64,
}

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Load {
    fn begin(gateway: &mut Gateway, to: SocketAddr) -> Self {
        let endpoint = gateway.relay.endpoint();
        let flow = endpoint.open(Instant::now(), UserId(1), Destination::Address(to)).unwrap();
        Self { flow, sent: 0, received: 0 }
    }

    fn turn(&mut self, gateway: &mut Gateway, sends: bool) {
        let now = Instant::now();
        let endpoint = gateway.relay.endpoint();
        let room = endpoint.write_room(self.flow).min(65_536) as u64;
        if sends && room > 0 && self.sent - self.received < 4_000_000 {
            let bytes: Vec<u8> = (self.sent..self.sent + room).map(byte).collect();
            self.sent += endpoint.write(now, self.flow, &bytes) as u64;
        }
        let mut got = 0;
        for piece in endpoint.readable(self.flow) {
            for read in piece {
                assert_eq!(*read, byte(self.received), "at {}", self.received);
                self.received += 1;
            }
            got += piece.len();
        }
        endpoint.consume(now, self.flow, got);
        for event in gateway.turn() {
            if let RelayEvent::Session(Event::Reset { flow, reason }) = &event {
                assert_ne!(*flow, self.flow, "the flow was lost: {reason:?}");
            }
            gateway.seen.push(event);
        }
    }

    /// Runs the load for a while, and for at least one megabyte.
    fn go_on(&mut self, gateway: &mut Gateway) {
        let (begun, from) = (Instant::now(), self.received);
        while begun.elapsed() < Duration::from_millis(100) || self.received < from + 1_000_000 {
            assert!(begun.elapsed() < Duration::from_secs(20), "the load makes no progress");
            self.turn(gateway, true);
        }
    }

    fn until<T>(
        &mut self,
        gateway: &mut Gateway,
        what: &str,
        wanted: impl Fn(&RelayEvent) -> Option<T>,
    ) -> T {
        let limit = Instant::now() + Duration::from_secs(20);
        gateway.seen.clear();
        loop {
            self.turn(gateway, true);
            if let Some(found) = gateway.seen.iter().find_map(&wanted) {
                return found;
            }
            assert!(Instant::now() < limit, "no {what}");
        }
    }

    /// Opens a new flow: `None` if it is dialed, else the reason of its reset.
    fn try_flow(&mut self, gateway: &mut Gateway, to: SocketAddr) -> Option<ResetReason> {
        let fresh = Self::begin(gateway, to).flow;
        let outcome = self.until(gateway, "outcome of a dial", |event| match event {
            RelayEvent::Session(Event::Dialed { flow }) => (*flow == fresh).then_some(None),
            RelayEvent::Session(Event::Reset { flow, reason }) => {
                (*flow == fresh).then_some(Some(*reason))
            }
            _ => None,
        });
        if outcome.is_none() {
            gateway.relay.endpoint().reset(Instant::now(), fresh, ResetReason::Internal);
        }
        outcome
    }
}

struct World {
    cloud: Cloud,
    authority: Authority,
    gateway: Gateway,
    load: Load,
    echo: SocketAddr,
}

const OPEN: &str = "[access]\nallow = [\"127.0.0.0/8\"]\n";

impl World {
    fn new(dir: &Path) -> Self {
        let authority = Authority::create(dir, "Test", false).unwrap();
        issue(&authority, dir, "c", NodeRole::Cloud);
        let (identity, _) = issue(&authority, dir, "train-7", NodeRole::Gateway);
        let cloud = Cloud::start(dir, "", OPEN);
        let mut gateway = Gateway::new(&identity);
        let quic = gateway.connect_quic("a", cloud.address);
        gateway.until_path(quic);
        let tls = gateway.connect_tls("b", cloud.address);
        gateway.until_path(tls);
        let echo = echo();
        let mut load = Load::begin(&mut gateway, echo);
        load.go_on(&mut gateway);
        Self { cloud, authority, gateway, load, echo }
    }

    fn go_on(&mut self) {
        self.load.go_on(&mut self.gateway);
    }

    fn try_flow(&mut self) -> Option<ResetReason> {
        self.load.try_flow(&mut self.gateway, self.echo)
    }

    /// Sends a request to the admin socket under load.
    fn ask(&mut self, request: &str, body: &str) -> (u16, serde_json::Value) {
        self.go_on();
        let answer = self.cloud.ask(request, body);
        self.go_on();
        answer
    }

    fn reload(&mut self) -> serde_json::Value {
        let (code, answer) = self.ask("POST /v1/reload", "");
        assert_eq!(code, 200, "{answer}");
        answer
    }

    /// Waits until every byte was echoed.
    fn finish(mut self) -> u64 {
        let limit = Instant::now() + Duration::from_secs(20);
        while self.load.received < self.load.sent {
            assert!(Instant::now() < limit, "the rest of the load is missing");
            self.load.turn(&mut self.gateway, false);
        }
        self.load.received
    }
}

#[test]
fn access_lists_reload_under_load_and_invalid_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new(folder.path());
    assert_eq!(world.try_flow(), None);

    world.cloud.rewrite("", "");
    let pid = Pid::from_raw(i32::try_from(world.cloud.process.id()).unwrap());
    kill(pid, Signal::SIGHUP).unwrap();
    world.cloud.until_logged("configuration reloaded");
    assert_eq!(world.try_flow(), Some(ResetReason::Forbidden));
    world.go_on();

    world.cloud.rewrite("", OPEN);
    let answer = world.reload();
    assert_eq!(answer["changes"][0]["key"], "access.allow", "{answer}");
    assert_eq!(world.try_flow(), None);

    world.cloud.rewrite("", "[access]\nallow = 7\n");
    let (code, answer) = world.ask("POST /v1/reload", "");
    assert_eq!((code, &answer["error"]["code"]), (422, &"invalid_config".into()), "{answer}");
    assert_eq!(answer["error"]["key"], "access.allow");
    world.cloud.rewrite("mode = \"tls\"", "");
    let (code, answer) = world.ask("POST /v1/reload", "");
    assert_eq!((code, &answer["error"]["code"]), (409, &"restart_needed".into()), "{answer}");
    assert_eq!(answer["error"]["keys"], serde_json::json!(["mode"]));
    assert_eq!(world.try_flow(), None, "nothing has changed");

    let other = "[dial]\ntimeout = \"3s\"\n[session]\nlinger = \"60s\"\nflows_max = 2\n";
    let chain = "[scheduler]\nchain = \"redundant\"\n[carrier_congestion]\nb = \"reno\"\n";
    world.cloud.rewrite("congestion = \"cubic\"", &format!("{OPEN}{other}{chain}"));
    let answer = world.reload();
    assert_eq!(answer["changes"].as_array().unwrap().len(), 6, "{answer}");
    world.cloud.until_logged("congestion control set");
    let (_, status) = world.ask("GET /v1/status", "");
    assert_eq!(status["config"]["reloads"], 3, "{status}");
    assert_eq!(status["config"]["reloads_refused"], 2);
    assert_eq!(status["scheduler"], serde_json::json!(["min_rtt", "redundancy"]));
    assert_eq!(world.cloud.events("reloaded").len(), 3);
    assert_eq!(world.cloud.events("reload_refused").len(), 2);
    println!("{} bytes were echoed", world.finish());
}

#[test]
fn certificates_reload_under_load_and_revoked_gateways_are_closed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let mut world = World::new(dir);
    let (other, issued) = issue(&world.authority, dir, "train-8", NodeRole::Gateway);
    let address = world.cloud.address;
    let mut train = Gateway::new(&other);
    let mut tunnels = Vec::new();
    for quic in [true, false] {
        let tunnel = match quic {
            true => train.connect_quic("a", address),
            false => train.connect_tls("b", address),
        };
        train.until_path(tunnel);
        tunnels.push(tunnel);
    }

    // The cloud's own certificate is renewed: tunnels stay, new ones see the new one.
    let serial = |gateway: &Gateway, tunnel| {
        gateway.relay.tunnel(tunnel).unwrap().serial.unwrap().to_owned()
    };
    let before = serial(&train, tunnels[0]);
    issue(&world.authority, dir, "c", NodeRole::Cloud);
    let answer = world.reload();
    assert!(answer.to_string().contains("tls.certificate"), "{answer}");
    assert!(tunnels.iter().all(|tunnel| train.relay.tunnel(*tunnel).is_some_and(|view| view.up)));
    let (third, _) = issue(&world.authority, dir, "train-9", NodeRole::Gateway);
    for quic in [true, false] {
        let mut late = Gateway::new(&third);
        let tunnel = match quic {
            true => late.connect_quic("a", address),
            false => late.connect_tls("b", address),
        };
        late.until("handshake", |event| matches!(event, RelayEvent::TunnelUp { .. }).then_some(()));
        assert_ne!(serial(&late, tunnel), before);
    }

    // A gateway is revoked: both its tunnels go, nobody else's, and it stays out.
    world.authority.revoke_file(&issued.certificate_file).unwrap();
    let answer = world.reload();
    assert!(answer.to_string().contains("tls.revocations"), "{answer}");
    let mut open = tunnels.clone();
    train.until("end of the revoked tunnels", |event| {
        if let RelayEvent::TunnelClosed { tunnel, .. } = event {
            open.retain(|other| *other != tunnel);
        }
        open.is_empty().then_some(())
    });
    for quic in [true, false] {
        let mut train = Gateway::new(&other);
        let key = match quic {
            true => train.connect_quic("a", address),
            false => train.connect_tls("b", address),
        };
        let reason = train.until("refusal", |event| match event {
            RelayEvent::TunnelClosed { tunnel, reason, .. } if tunnel == key => Some(reason),
            RelayEvent::Session(Event::PathUp { .. }) => panic!("a revoked gateway was accepted"),
            _ => None,
        });
        assert!(reason.to_string().contains("revoked"), "quic {quic}: {reason}");
    }
    world.go_on();
    let (_, status) = world.ask("GET /v1/status", "");
    assert_eq!(status["tunnels"]["refused"], 2, "{status}");
    assert_eq!(world.cloud.log().matches("certificate is revoked").count(), 2);
    let mut third = Gateway::new(&third);
    let tunnel = third.connect_quic("c", address);
    third.until_path(tunnel);
    println!("{} bytes were echoed", world.finish());
}

#[test]
fn unavailable_congestion_control_causes_a_warning() {
    let (folder, _, (identity, _)) = identities();
    let dir = folder.path();
    let cloud = Cloud::start(dir, "congestion = \"reno\"", OPEN);
    let mut gateway = Gateway::new(&identity);
    let tunnel = gateway.connect_tls("a", cloud.address);
    gateway.until_path(tunnel);

    cloud.rewrite("congestion = \"warp\"", OPEN);
    let (code, answer) = cloud.ask("POST /v1/reload", "");
    assert_eq!(code, 200, "{answer}");
    assert_eq!(answer["changes"][0]["key"], "congestion", "{answer}");
    let warnings = answer["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 2, "one for TCP and one for QUIC: {answer}");
    let kernel = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    cloud.until_logged(&format!("congestion={:?}", kernel.trim()));
}

#[test]
fn revoked_gateway_is_closed_at_any_stage_of_its_handshake() {
    let (folder, authority, (identity, issued)) = identities();
    let dir = folder.path();
    let cloud = Cloud::start(dir, "", OPEN);
    let mut gateway = Gateway::new(&identity);
    let first = gateway.connect_quic("a", cloud.address);
    gateway.until_path(first);
    // Tickets arrive after the handshake.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(200) {
        gateway.turn();
    }
    // The gateway sends early data and stops.
    gateway.connect_quic("a", cloud.address);
    gateway.speak_first();
    cloud.until_logged("early data accepted");
    // The cloud waits for the rest of these handshakes.
    let mut late = Gateway::new(&identity);
    let mut open =
        vec![late.connect_tls("b", cloud.address), late.connect_quic("c", cloud.address)];
    late.speak_first();
    std::thread::sleep(Duration::from_millis(200));

    authority.revoke_file(&issued.certificate_file).unwrap();
    let (code, answer) = cloud.ask("POST /v1/reload", "");
    assert_eq!(code, 200, "{answer}");
    let closed = |cloud: &Cloud| {
        let log = cloud.log();
        log.matches("closing a tunnel: the peer's certificate is revoked").count()
    };
    assert_eq!(closed(&cloud), 2, "{}", cloud.log());
    late.until("end", |event| match event {
        RelayEvent::TunnelClosed { tunnel, .. } => {
            open.retain(|other| *other != tunnel);
            open.is_empty().then_some(())
        }
        RelayEvent::Session(Event::SessionUp { .. }) => panic!("a revoked gateway was accepted"),
        _ => None,
    });
    assert_eq!(closed(&cloud), 2, "{}", cloud.log());
}

#[test]
fn only_refused_tunnels_cause_warnings() {
    let (folder, _, (identity, _)) = identities();
    let dir = folder.path();
    let cloud = Cloud::start(dir, "", OPEN);
    let mut gateway = Gateway::new(&identity);
    let first = gateway.connect_quic("a", cloud.address);
    gateway.until_path(first);
    let mut load = Load::begin(&mut gateway, echo());
    load.go_on(&mut gateway);
    gateway.connect_quic("a", cloud.address);
    load.until(&mut gateway, "the end of the older path", |event| match event {
        RelayEvent::TunnelClosed { tunnel, .. } => (*tunnel == first).then_some(()),
        _ => None,
    });
    // A new process of the same gateway takes over.
    let begun = Instant::now();
    let mut other = Gateway::new(&identity);
    let tunnel = other.connect_quic("a", cloud.address);
    other.until_path(tunnel);
    let refused = "closing a tunnel gateway=\"train-7\"";
    let (taken_over, superseded) = ("a new process of the gateway", "superseded by a newer tunnel");
    let of = |log: &str, reason: &str| -> Vec<String> {
        let lines = log.lines().filter(|line| line.contains(refused) && line.contains(reason));
        lines.map(str::to_owned).collect()
    };
    let mut log = cloud.log();
    while of(&log, taken_over).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{log}");
        std::thread::sleep(Duration::from_millis(5));
        log = cloud.log();
    }
    assert!(of(&log, taken_over).iter().all(|line| line.contains("WARN")), "{log}");
    // Either side may be the first to close the older path.
    let by_the_peer = log.contains("reason=closed by the peer");
    let by_the_cloud = of(&log, superseded);
    assert!(by_the_peer || !by_the_cloud.is_empty(), "{log}");
    assert!(!by_the_cloud.iter().any(|line| line.contains("WARN")), "{log}");
}

#[test]
fn operators_see_paths_and_change_the_scheduler() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new(folder.path());
    let (code, answer) = world.ask("GET /v1/paths", "");
    assert_eq!(code, 200, "{answer}");
    let paths = answer["paths"].as_array().unwrap();
    let names: Vec<_> = paths.iter().map(|path| path["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["train-7:a", "train-7:b"]);
    for (path, mode) in paths.iter().zip(["quic", "tls"]) {
        assert_eq!((&path["mode"], &path["state"]), (&mode.into(), &"up".into()), "{path}");
        assert_eq!((&path["peer"], &path["configured_mode"]), (&"train-7".into(), &"auto".into()));
        assert_eq!(path["counters"]["attempts"], 1);
        assert!(path["link"]["srtt_us"].as_u64().unwrap() > 0);
        assert_eq!(path["connections"][0]["mode"], mode);
        assert!(path["local_address"].as_str().unwrap().starts_with("127.0.0.1:"), "{path}");
    }
    let sent = |path: &serde_json::Value| path["counters"]["sent_bytes"].as_u64().unwrap();
    assert!(paths.iter().map(sent).sum::<u64>() > 1_000_000);

    let set = "PUT /v1/paths/train-7:a";
    for body in [r#"{"mode": "tls"}"#, r#"{"enabled": false}"#, r#"{"restart": true}"#] {
        let (code, answer) = world.ask(set, body);
        assert_eq!((code, &answer["error"]["code"]), (409, &"refused".into()), "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("only the gateway changes a carrier: ask train-7"), "{message}");
    }
    let (code, _) = world.ask("PUT /v1/paths/train-9:a", r#"{"mode": "tls"}"#);
    assert_eq!(code, 404);
    let (code, answer) = world.ask(set, r#"{"scheduler": "redundant"}"#);
    assert_eq!((code, &answer["error"]["code"]), (400, &"bad_request".into()), "{answer}");
    let redundant = serde_json::json!(["min_rtt", "redundancy"]);
    let (code, answer) = world.ask("PUT /v1/scheduler", r#"{"scheduler": "redundant"}"#);
    assert_eq!((code, &answer["scheduler"]), (200, &redundant), "{answer}");
    let (_, status) = world.ask("GET /v1/status", "");
    assert_eq!(status["scheduler"], redundant);

    let up = world.cloud.events("path_up");
    assert_eq!(up.len(), 2, "{up:?}");
    assert_eq!((&up[0]["path"], &up[0]["mode"]), (&"train-7:a".into(), &"quic".into()));
    assert_eq!(world.cloud.events("session_up")[0]["peer"], "train-7");
    assert_eq!(world.cloud.events("scheduler_changed")[0]["scheduler"], redundant);
    for key in world.gateway.relay.tunnel_keys() {
        let is_b = world.gateway.relay.tunnel(key).is_some_and(|view| view.carrier == "b");
        if is_b {
            world.gateway.relay.close_tunnel(Instant::now(), key);
        }
    }
    world.go_on();
    let down = world.cloud.events("path_down");
    assert_eq!((down.len(), &down[0]["path"]), (1, &"train-7:b".into()), "{down:?}");
    println!("{} bytes were echoed", world.finish());
}
