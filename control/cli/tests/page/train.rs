//! A gateway on a train.

use polyrail_admin::{
    AdminEvent, CapLevel, CapState, Demotion, PathPhase, PathState, SessionPhase, Snapshot,
    Timestamp,
};
use polyrail_config::{CapAction, CarrierRole};
use polyrail_model::TunnelMode;
use serde_json::{Value, json};

use super::daemon::{Script, path, session, user};

/// With a session, users and LinkDB.
pub fn busy() -> Script {
    Script {
        config: TEXT,
        snapshot: Snapshot {
            scheduler: scheduler(),
            sessions: vec![session("cloud", SessionPhase::Up, 11_130.0, 42)],
            ..Snapshot::default()
        },
        paths,
        users: |seconds| (0..14).map(|number| user(number, seconds)).collect(),
        trips: Some(|seconds| json!([trip(seconds)])),
        events: events(),
    }
}

/// Without any of them.
pub fn idle() -> Script {
    Script {
        snapshot: Snapshot { scheduler: scheduler(), ..Snapshot::default() },
        paths: |_| {
            let gone = |path| PathState { mode: None, link: None, ..path };
            let down = |path: PathState| match path.state {
                PathPhase::NoInterface => path,
                _ => PathState { state: PathPhase::Down, ..path },
            };
            paths(0.0).into_iter().map(gone).map(down).collect()
        },
        users: |_| Vec::new(),
        trips: None,
        events: Vec::new(),
        ..busy()
    }
}

pub fn scheduler() -> Vec<String> {
    ["handover_rejection(hazard=true)", "earliest_delivery"].map(str::to_owned).into()
}

fn paths(seconds: f64) -> Vec<PathState> {
    let fast = path("lte-a", PathPhase::Up, Some(TunnelMode::Quic), (seconds, 38.0));
    let slow = path("lte-b", PathPhase::Stalled, Some(TunnelMode::Tls), (seconds, 4.0));
    let third = path("5g", PathPhase::Up, Some(TunnelMode::Quic), (seconds, 12.0));
    let gone = path("satellite", PathPhase::NoInterface, None, (0.0, 0.0));
    let reason = "UDP is blocked".to_owned();
    let demotion = Some(Demotion { reason, since: Timestamp::now(), retry_in_s: 20.0 });
    let cap = Some(CapState {
        limit_bytes: LIMIT,
        reset_day: 1,
        at: CapAction::Stop,
        level: CapLevel::High,
        used_bytes: Some(USED),
        period_from: None,
        period_until: None,
    });
    let (third, role) = (PathState { cap, ..third }, CarrierRole::Backup);
    vec![fast, PathState { demotion, ..slow }, third, PathState { role, ..gone }]
}

fn events() -> Vec<AdminEvent> {
    let (mode, none) = (TunnelMode::Quic, None);
    let path = |name: &str| name.to_owned();
    vec![
        AdminEvent::SessionUp { session: "1".to_owned(), peer: "cloud".to_owned() },
        AdminEvent::PathUp { path: path("lte-a"), mode, local_address: none, peer_address: none },
        AdminEvent::PathUp { path: path("5g"), mode, local_address: none, peer_address: none },
        AdminEvent::PathRestarted {
            path: path("5g"),
            mode,
            reason: "the modem changed the cell".to_owned(),
            attempts: 2,
            took_s: 0.31,
        },
        AdminEvent::DataCap {
            path: path("5g"),
            level: CapLevel::High,
            used_bytes: USED,
            limit_bytes: LIMIT,
        },
        AdminEvent::Alarm { message: "<b>lte-b</b> is no element".to_owned(), path: None },
        AdminEvent::PathStalled {
            path: path("lte-b"),
            reason: "no acknowledgement for 0.4 s".to_owned(),
        },
    ]
}

/// At 230 km/h: cells change every few hundred metres, and the first carrier will fail.
pub fn trip(seconds: f64) -> Value {
    let metres = 12_345.0 + 64.0 * seconds;
    let cell = |every: f64, first: u64| first + (metres / every) as u64;
    json!({
        "gateway": null,
        "trip": "a1b2c3d4",
        "route": "4fd0bfc100000007",
        "direction": "up",
        "metres": metres,
        "metres_per_second": 64.0,
        "error_metres": 12.0,
        "carriers": [
            { "carrier": "lte-a", "cell": cell(130.0, 0x4fd0), "fails_in_s": 9.0,
              "permille": 410 },
            { "carrier": "lte-b", "cell": null, "fails_in_s": null, "permille": null },
            { "carrier": "5g", "cell": cell(90.0, 0x1a00), "fails_in_s": null,
              "permille": null },
        ],
    })
}

/// The cap of a carrier, and its used bytes.
const LIMIT: u64 = 50_000_000_000;
const USED: u64 = 38_600_000_000;

const TEXT: &str = r#"[tls]
certificate = "n.crt"
key = "n.key"
authority = "ca.crt"
[cloud]
name = "cloud"
addresses = ["192.0.2.1:4433"]
[[carrier]]
name = "lte-a"
[socks5]
listen = ["127.0.0.1:1080"]
[page]
listen = "127.0.0.1:PORT"
"#;
