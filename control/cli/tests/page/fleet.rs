//! A cloud with three trains: the first is as [`train`](super::train) has it, the second travels
//! the other way, and the third has lost its paths. An operator drains the cloud.

use std::mem::swap;

use polyrail_admin::{
    AdminEvent, DrainState, PathPhase, PathState, SessionPhase, SessionState, Snapshot, UserState,
};
use polyrail_model::TunnelMode;
use serde_json::{Value, json};

use super::daemon::{Script, path, session, user};
use super::train;

pub fn draining() -> Script {
    let trains = [
        session("train-7", SessionPhase::Up, 11_130.0, 42),
        session("train-12", SessionPhase::Up, 420.0, 9),
        session("train-31", SessionPhase::Lingering, 95.0, 3),
    ];
    let numbered = (1..).zip(trains);
    let numbered =
        numbered.map(|(id, train): (u8, _)| SessionState { id: id.to_string(), ..train });
    Script {
        config: TEXT,
        snapshot: Snapshot {
            scheduler: train::scheduler(),
            sessions: numbered.collect(),
            drain: Some(DrainState { flows: 54, ends_in_s: 272.0 }),
            ..Snapshot::default()
        },
        paths,
        users: |seconds| (0..12).map(|number| passenger(number, seconds)).collect(),
        trips: Some(|seconds| json!([trip("train-7", seconds), back(seconds)])),
        events: events(),
    }
}

fn paths(seconds: f64) -> Vec<PathState> {
    let (quic, tls) = (Some(TunnelMode::Quic), Some(TunnelMode::Tls));
    [
        ("train-12", path("lte-a", PathPhase::Up, quic, (seconds, 9.0))),
        ("train-12", path("lte-b", PathPhase::Up, tls, (seconds, 3.0))),
        ("train-31", path("lte-a", PathPhase::Down, None, (0.0, 0.0))),
        ("train-7", path("5g", PathPhase::Up, quic, (seconds, 12.0))),
        ("train-7", path("lte-a", PathPhase::Up, quic, (seconds, 38.0))),
        ("train-7", path("lte-b", PathPhase::Stalled, tls, (seconds, 4.0))),
    ]
    .map(|(gateway, path)| {
        let mut counters = path.counters;
        swap(&mut counters.sent_bytes, &mut counters.received_bytes);
        let (name, peer) = (format!("{gateway}:{}", path.carrier), Some(gateway.to_owned()));
        PathState { name, peer, counters, interface: None, ..path }
    })
    .into()
}

fn passenger(number: u64, seconds: f64) -> UserState {
    let gateway = Some(if number % 3 == 1 { "train-12" } else { "train-7" }.to_owned());
    let mut user = UserState { gateway, address: None, ..user(number, seconds) };
    swap(&mut user.sent_bytes, &mut user.received_bytes);
    user
}

fn trip(gateway: &str, seconds: f64) -> Value {
    let mut trip = train::trip(seconds);
    trip["gateway"] = gateway.into();
    trip
}

/// The second train: its first carrier has no forecast, and its second one fails soon.
fn back(seconds: f64) -> Value {
    let mut trip = trip("train-12", -seconds);
    trip["direction"] = "down".into();
    for field in ["fails_in_s", "permille"] {
        trip["carriers"][0][field] = Value::Null;
    }
    trip["carriers"].as_array_mut().unwrap().truncate(2);
    trip["carriers"][1]["fails_in_s"] = 4.0.into();
    trip["carriers"][1]["permille"] = 730.into();
    trip
}

fn events() -> Vec<AdminEvent> {
    let (mode, none) = (TunnelMode::Quic, None);
    let text = str::to_owned;
    let up =
        |session: &str, peer| AdminEvent::SessionUp { session: text(session), peer: text(peer) };
    let path = text("train-7:5g");
    vec![
        up("1", "train-7"),
        AdminEvent::PathUp { path, mode, local_address: none, peer_address: none },
        up("2", "train-12"),
        AdminEvent::SessionEnded {
            session: text("4"),
            peer: Some(text("train-40")),
            reason: text("it had no path for 2 min"),
        },
        AdminEvent::PathDown { path: text("train-31:lte-a"), reason: text("connection timed out") },
        AdminEvent::Draining { flows: 61, ends_in_s: 300.0 },
    ]
}

const TEXT: &str = r#"listen = ["127.0.0.1:4433"]
[tls]
certificate = "n.crt"
key = "n.key"
authority = "ca.crt"
[page]
listen = "127.0.0.1:PORT"
"#;
