//! `docs/admin.md` lists every field, event and error code.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::super::{
    AdminEvent, CapLevel, CapState, ConfigState, ConnectionPhase, ConnectionState, Demotion,
    ErrorCode, EventRecord, LinkChange, LinkState, ModeDecision, ProcessState, Reloaded,
    RestartWish, Status,
};
use super::*;
use crate::reload::ChangeLine;
use polyrail_config::CapAction;
use polyrail_identity::NodeRole;

fn reference() -> String {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/admin.md");
    std::fs::read_to_string(file).unwrap()
}

/// The names of all fields, at any depth.
fn names(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                found.insert(name.clone());
                names(value, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| names(item, found)),
        _ => {}
    }
}

pub(crate) fn full_path() -> PathState {
    let (at, address) = (Timestamp::now(), "192.0.2.1:1".parse::<SocketAddr>().unwrap());
    let link = LinkState {
        srtt_us: 1,
        rtt_min_us: 1,
        rtt_var_us: 1,
        window_bytes: 1,
        in_flight_bytes: 1,
        unsent_bytes: 1,
        delivery_rate_bits_per_s: Some(1),
        application_limited: false,
        sent_packets: 1,
        lost_packets: 0,
        timeouts: 0,
        acked_bytes: 1,
    };
    let connection = ConnectionState {
        id: 1,
        path: Some(1),
        mode: TunnelMode::Quic,
        state: ConnectionPhase::Up,
        local_address: Some(address),
        peer_address: Some(address),
        age_s: 1.0,
        sent_bytes: 1,
        received_bytes: 1,
        link: Some(link),
    };
    let cap = CapState {
        limit_bytes: 1,
        reset_day: 1,
        at: CapAction::Stop,
        level: CapLevel::Reached,
        used_bytes: Some(1),
        period_from: Some("2026-11-01".to_owned()),
        period_until: Some("2026-12-01".to_owned()),
    };
    let (mode, reason) = (TunnelMode::Quic, String::new());
    PathState {
        decision: Some(ModeDecision { mode, reason: reason.clone(), at }),
        demotion: Some(Demotion { reason, since: at, retry_in_s: 1.0 }),
        link: Some(link),
        rate_limit_bits_per_s: Some(1),
        cap: Some(cap),
        connections: vec![connection],
        ..path_a()
    }
}

pub(crate) fn full_status() -> Status {
    Status {
        api: "v1".to_owned(),
        role: NodeRole::Gateway,
        version: String::new(),
        pid: 1,
        started_at: Timestamp::now(),
        uptime_s: 1.0,
        config: ConfigState {
            file: PathBuf::from("f"),
            loaded_at: Timestamp::now(),
            reloads: 0,
            reloads_refused: 0,
        },
        process: ProcessState {
            cpu_s: 1.0,
            descriptors_open: None,
            descriptors_max: None,
            memory_resident_bytes: None,
        },
        snapshot: snapshot(),
    }
}

/// One event of each kind.
pub(super) fn events() -> Vec<AdminEvent> {
    let text = || "a".to_owned();
    let (mode, path, reason) = (TunnelMode::Tls, text(), text());
    let error = (*AdminError::refused("no").0).clone();
    let link =
        LinkChange { interface: text(), index: 1, present: true, up: true, addresses: Vec::new() };
    let up = AdminEvent::PathUp { path: text(), mode, local_address: None, peer_address: None };
    let all = vec![
        AdminEvent::Started,
        up,
        AdminEvent::PathDown { path: text(), reason: text() },
        AdminEvent::PathStalled { path: text(), reason: text() },
        AdminEvent::PathRecovered { path: text(), stalled_s: 1.0 },
        AdminEvent::ModeChanged { path: text(), from: None, to: mode, reason: text() },
        AdminEvent::PathRestarted { path, mode, reason, attempts: 1, took_s: 1.0 },
        AdminEvent::PathDemoted { path: text(), reason: text(), retry_in_s: 1.0 },
        AdminEvent::QuicRetried { path: text() },
        AdminEvent::PathChanged { path: text(), change: text() },
        AdminEvent::SchedulerChanged { scheduler: vec![text()] },
        AdminEvent::SessionUp { session: text(), peer: text() },
        AdminEvent::SessionEnded { session: text(), peer: None, reason: text() },
        AdminEvent::CloudChanged { from: text(), to: text(), reason: text() },
        AdminEvent::Draining { flows: 1, ends_in_s: 1.0 },
        AdminEvent::Reloaded { changes: Vec::new() },
        AdminEvent::ReloadRefused { error },
        AdminEvent::LinkChanged(link),
        AdminEvent::DataCap { path: text(), level: CapLevel::High, used_bytes: 1, limit_bytes: 1 },
        AdminEvent::Alarm { message: text(), path: None },
        AdminEvent::EventsLost { count: 1 },
    ];
    let kinds: BTreeSet<_> = all.iter().map(kind).collect();
    assert_eq!(kinds.len(), KINDS, "one of each kind");
    all
}

const KINDS: usize = 21;

/// A number per kind, so that a new kind does not compile without a row here.
fn kind(event: &AdminEvent) -> usize {
    match event {
        AdminEvent::Started => 0,
        AdminEvent::PathUp { .. } => 1,
        AdminEvent::PathDown { .. } => 2,
        AdminEvent::PathStalled { .. } => 3,
        AdminEvent::PathRecovered { .. } => 4,
        AdminEvent::ModeChanged { .. } => 5,
        AdminEvent::PathRestarted { .. } => 6,
        AdminEvent::PathDemoted { .. } => 7,
        AdminEvent::QuicRetried { .. } => 8,
        AdminEvent::PathChanged { .. } => 9,
        AdminEvent::SessionUp { .. } => 10,
        AdminEvent::SessionEnded { .. } => 11,
        AdminEvent::Reloaded { .. } => 12,
        AdminEvent::ReloadRefused { .. } => 13,
        AdminEvent::LinkChanged(_) => 14,
        AdminEvent::Alarm { .. } => 15,
        AdminEvent::SchedulerChanged { .. } => 16,
        AdminEvent::DataCap { .. } => 17,
        AdminEvent::CloudChanged { .. } => 18,
        AdminEvent::Draining { .. } => 19,
        AdminEvent::EventsLost { .. } => KINDS - 1,
    }
}

#[test]
fn every_field_is_in_the_reference() {
    let reference = reference();
    let line = ChangeLine { key: "k".to_owned(), from: None, to: None };
    let all = json!([
        full_path(),
        full_status(),
        FlowPage { flows: vec![flow()], next: None },
        UserPage { users: vec![user_ab()], next: None, places: Vec::new() },
        Reloaded { changes: vec![line], warnings: Vec::new() },
        speedtest(),
        PathChange {
            enabled: Some(true),
            mode: Some(Mode::Tls),
            role: Some(CarrierRole::Never),
            cap: Some(None),
            rate_limit: Some(None),
            restart: Some(RestartWish::Cell),
        },
    ]);
    let mut found = BTreeSet::new();
    names(&all, &mut found);
    assert!(found.len() > 70, "{}", found.len());
    for name in found {
        let quoted = [format!("`{name}`"), format!(".{name}`"), format!("`{name}.")];
        assert!(quoted.iter().any(|text| reference.contains(text)), "{name} is not in admin.md");
    }
}

#[test]
fn every_event_round_trips_and_has_its_row_with_its_fields() {
    let reference = reference();
    for event in events() {
        let record = EventRecord { seq: 7, at: Timestamp::now(), event };
        let value = serde_json::to_value(&record).unwrap();
        assert_eq!(serde_json::from_value::<EventRecord>(value.clone()).unwrap(), record);
        let name = value["event"].as_str().unwrap();
        let start = format!("| `{name}` |");
        let row = reference.lines().find(|line| line.starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("{name} is not in admin.md"));
        let documented: BTreeSet<_> = row.split('|').nth(2).unwrap().split('`').collect();
        let common = ["event", "seq", "at"];
        let fields = value.as_object().unwrap().keys().filter(|f| !common.contains(&f.as_str()));
        for field in fields {
            assert!(documented.contains(field.as_str()), "{name}: {field} is not in admin.md");
        }
    }
}

/// All error codes.
pub(super) const CODES: [ErrorCode; 11] = [
    ErrorCode::BadRequest,
    ErrorCode::NotFound,
    ErrorCode::UnknownPath,
    ErrorCode::MethodNotAllowed,
    ErrorCode::Refused,
    ErrorCode::RestartNeeded,
    ErrorCode::TooLarge,
    ErrorCode::InvalidConfig,
    ErrorCode::Internal,
    ErrorCode::Busy,
    ErrorCode::Timeout,
];

#[test]
fn every_error_code_has_its_row() {
    let reference = reference();
    for code in CODES {
        let row = format!("| `{code}` | {} |", code.http_status());
        assert!(reference.contains(&row), "{row} is not in admin.md");
        assert_eq!(serde_json::to_value(code).unwrap(), code.to_string());
    }
}
