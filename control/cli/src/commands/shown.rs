//! Formats a daemon's answers for people: tables, units, one event per line.

use std::collections::BTreeMap;
use std::io::{self, Write};

use polyrail_admin::{
    CloudState, ConnectionState, Demotion, DrainState, FlowState, LinkState, PathState,
    RefusedCounts, Reloaded, SessionState, SourceState, Status, UserState,
};
use polyrail_predictor::shared::SharedState;
use polyrail_predictor::views::ViewSizes;
use polyrail_predictor::worker::{TripState, Unrecorded, WorkerState};
use serde::Deserialize;
use serde_json::Value;

/// `polyrail status`.
pub(super) fn status(status: &Status, out: &mut dyn Write) -> io::Result<()> {
    let Status { role, version, pid, config, process, snapshot, .. } = status;
    let (role, uptime) = (role.as_str(), duration(status.uptime_s));
    writeln!(out, "polyrail-{role} {version}, process {pid}, up for {uptime}")?;
    let (file, loaded) = (config.file.display(), config.loaded_at);
    let (taken, refused) = (config.reloads, config.reloads_refused);
    writeln!(out, "configuration  {file}, read {loaded}; reloads: {taken}, refused: {refused}")?;
    let open = process.descriptors_open.map_or("?".to_owned(), |open| open.to_string());
    let most = process.descriptors_max.map_or("any".to_owned(), |most| most.to_string());
    let memory = process.memory_resident_bytes.map_or("?".to_owned(), bytes);
    let cpu = duration(process.cpu_s);
    writeln!(out, "process        {cpu} of CPU, {memory}, {open} of {most} descriptors")?;
    writeln!(out, "scheduler      {}", snapshot.scheduler.join(", "))?;
    let tunnels = &snapshot.tunnels;
    let (up, half, refused) = (tunnels.up, tunnels.half_open, tunnels.refused);
    writeln!(out, "tunnels        {up} up, {half} in handshake, {refused} refused")?;
    writeln!(out, "sockets        {} of users", snapshot.legs)?;
    if let Some(state) = &snapshot.drain {
        drain(state, out)?;
    }
    // A single cloud is that of the session.
    if snapshot.clouds.len() > 1 {
        snapshot.clouds.iter().try_for_each(|state| cloud(state, out))?;
    }
    if snapshot.sessions.is_empty() {
        writeln!(out, "no session")?;
    }
    snapshot.sessions.iter().try_for_each(|state| session(state, out))
}

fn cloud(cloud: &CloudState, out: &mut dyn Write) -> io::Result<()> {
    let CloudState { name, priority, state, flows, current } = cloud;
    let current = if *current { ", current" } else { "" };
    writeln!(out, "cloud {priority}        {name}: {}{current}, flows: {flows}", word(state))
}

/// `polyrail drain`.
pub(super) fn drain(drain: &DrainState, out: &mut dyn Write) -> io::Result<()> {
    let (flows, left) = (drain.flows, duration(drain.ends_in_s));
    writeln!(out, "draining       {flows} flows left; ends with the last one, at most in {left}")
}

fn session(session: &SessionState, out: &mut dyn Write) -> io::Result<()> {
    let peer = session.peer.as_deref().unwrap_or("?");
    let (id, state, age) = (&session.id, word(&session.state), duration(session.age_s));
    let (paths, flows) = (session.paths, session.flows);
    writeln!(out, "session {id} with {peer}: {state} for {age}; paths: {paths}, flows: {flows}")?;
    let (received, sent) = (bytes(session.received_bytes), bytes(session.sent_bytes));
    let again = bytes(session.reinjected_bytes);
    writeln!(out, "  received {received}, sent {sent}, reinjected {again}")?;
    let holds = bytes(session.memory_received_bytes);
    let waits = bytes(session.memory_sent_bytes);
    let most = bytes(session.memory_max_bytes);
    writeln!(out, "  receive buffer {holds}, send buffer {waits}, limit {most} each")
}

/// The answer of `GET /v1/linkdb`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct LinkDbAnswer {
    #[serde(flatten)]
    state: WorkerState,
    #[serde(default)]
    sources: Vec<SourceState>,
}

/// `polyrail linkdb status`.
pub(super) fn linkdb(answer: &LinkDbAnswer, out: &mut dyn Write) -> io::Result<()> {
    let state = &answer.state;
    let store = &state.store;
    let file = store.path.as_ref().map_or("in memory".into(), |path| path.display().to_string());
    match &store.error {
        None => writeln!(out, "database       {file}")?,
        Some(error) => writeln!(out, "database       {file}, cannot be used: {error}")?,
    }
    if let Some(reason) = &state.failed {
        writeln!(out, "failed         panic: {reason}; restart the daemon to enable forecasts")?;
    }
    if let Some(damaged) = &store.damaged {
        writeln!(out, "damaged        {damaged}")?;
    }
    if let Some(stats) = &store.stats {
        let (entries, writers) = (stats.entries, stats.writers);
        writeln!(out, "entries        {entries}, of {writers} writers")?;
        let ViewSizes { cells, tracks, places } = store.views;
        writeln!(out, "cells          {cells}; {tracks} tracks, {places} places")?;
    }
    let (recorded, received) = (state.recorded, state.received);
    writeln!(out, "since start    {recorded} recorded, {received} received")?;
    let (waiting, lost) = (store.waiting, store.lost);
    let (inputs, outputs) = (state.inputs_dropped, state.outputs_dropped);
    if waiting + inputs as usize + outputs as usize > 0 || lost > 0 {
        writeln!(
            out,
            "backlog        {waiting} to be written, {lost} lost; dropped: {inputs} inputs, \
             {outputs} outputs"
        )?;
    }
    shared(state, out)?;
    unrecorded(state, out)?;
    for source in &answer.sources {
        let SourceState { source, target, state, observations, errors, message, .. } = source;
        let message = message.as_deref().map_or(String::new(), |text| format!(": {text}"));
        writeln!(
            out,
            "telemetry      {source} {target}: {state}, {observations} observations, {errors} \
             errors{message}"
        )?;
    }
    if !state.forecast {
        writeln!(out, "forecasts      off")?;
    }
    state.trips.iter().try_for_each(|state| trip(state, out))
}

/// The database that a cloud shares with others.
fn shared(state: &WorkerState, out: &mut dyn Write) -> io::Result<()> {
    let Some(shared) = &state.shared else { return Ok(()) };
    let time = duration(shared.for_s as f64);
    match &shared.error {
        None => writeln!(out, "shared         reachable for {time}")?,
        Some(error) => writeln!(out, "shared         not reachable for {time}: {error}")?,
    }
    let SharedState { waiting, behind, sent, received, .. } = shared;
    writeln!(
        out,
        "               {waiting} entries to send, {behind} to receive; since start {sent} sent, \
         {received} received"
    )
}

/// Observations that were not recorded.
fn unrecorded(state: &WorkerState, out: &mut dyn Write) -> io::Result<()> {
    let Unrecorded { unplaced, gaps, untold, strangers, dropped } = state.unrecorded;
    if state.unrecorded.total() > 0 {
        writeln!(
            out,
            "not recorded   {unplaced} without a position, {untold} with unknown outcome, {gaps} \
             gaps, {strangers} of unknown carriers, {dropped} dropped"
        )?;
    }
    Ok(())
}

fn trip(trip: &TripState, out: &mut dyn Write) -> io::Result<()> {
    let whose = trip.gateway.as_deref().map_or(String::new(), |name| format!(" of {name}"));
    let Some(metres) = trip.metres else { return writeln!(out, "trip{whose}: no position") };
    let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "?".to_owned());
    let (number, route, way) = (name(&trip.trip), name(&trip.route), name(&trip.direction));
    let speed = trip.metres_per_second.unwrap_or(0.0) * 3.6;
    let error = trip.error_metres.unwrap_or(0.0);
    writeln!(
        out,
        "trip {number}{whose}: route {route} {way}, {:.2} km \u{b1} {error:.0} m, {speed:.0} km/h",
        metres / 1_000.0
    )?;
    for carrier in &trip.carriers {
        let cell = carrier.cell.map_or("no cell".to_owned(), |cell| format!("cell {cell:x}"));
        let forecast = forecast(carrier.fails_in_s, carrier.permille);
        writeln!(out, "  {}: {cell}, {forecast}", carrier.carrier)?;
    }
    Ok(())
}

fn forecast(fails_in_s: Option<f64>, permille: Option<u16>) -> String {
    let (Some(seconds), Some(permille)) = (fails_in_s, permille) else {
        return "no forecast".to_owned();
    };
    let probability = f64::from(permille) / 1_000.0;
    if seconds >= 0.0 {
        format!("fails in {seconds:.1} s (p={probability:.2})")
    } else {
        format!("predicted failure point passed {:.1} s ago (p={probability:.2})", -seconds)
    }
}

/// `polyrail flows`.
pub(super) fn flows(flows: &[FlowState], out: &mut dyn Write) -> io::Result<()> {
    let heads = [
        "ID",
        "STATE",
        "USER",
        "SOURCE",
        "DESTINATION",
        "AGE",
        "IDLE",
        "SENT",
        "RECEIVED",
        "CARRIERS",
    ];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(flows.iter().map(|flow| {
        let source = flow.source.map_or("-".to_owned(), |address| address.to_string());
        [
            flow.id.to_string(),
            word(&flow.state),
            of_gateway(&flow.user, flow.gateway.as_deref()),
            source,
            flow.destination.clone().unwrap_or_else(|| "-".to_owned()),
            duration(flow.age_s),
            duration(flow.idle_s),
            bytes(flow.sent_bytes),
            bytes(flow.received_bytes),
            flow.carriers.join(","),
        ]
    }));
    table(&rows, out)
}

/// `polyrail users`.
pub(super) fn users(users: &[UserState], out: &mut dyn Write) -> io::Result<()> {
    let heads = ["USER", "ADDRESS", "FLOWS", "SENT", "RECEIVED", "DIALS", "REFUSED", "REASON"];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(users.iter().map(|user| {
        let RefusedCounts { flows, quota, overload, queries } = user.refused;
        let known = |count: Option<u64>| count.map_or("-".to_owned(), bytes);
        [
            of_gateway(&user.user, user.gateway.as_deref()),
            user.address.map_or("-".to_owned(), |address| address.to_string()),
            user.flows.to_string(),
            known(user.sent_bytes),
            known(user.received_bytes),
            (user.dials + user.dials_waiting).to_string(),
            (flows + quota + overload + queries).to_string(),
            user.refused_reason.clone().unwrap_or_default(),
        ]
    }));
    table(&rows, out)
}

/// A user of a gateway, as a cloud knows it.
fn of_gateway(user: &str, gateway: Option<&str>) -> String {
    gateway.map_or(user.to_owned(), |gateway| format!("{gateway}:{user}"))
}

/// `polyrail paths`.
pub(super) fn paths(paths: &[PathState], out: &mut dyn Write) -> io::Result<()> {
    let heads = ["PATH", "STATE", "MODE", "CONFIGURED", "RTT", "RATE", "LOSS", "SENT", "RECEIVED"];
    let mut rows = vec![heads.map(str::to_owned)];
    for path in paths {
        let figure = |show: fn(&LinkState) -> String| path.link.as_ref().map_or("-".into(), show);
        rows.push([
            path.name.clone(),
            word(&path.state),
            path.mode.map_or("-", |mode| mode.as_str()).to_owned(),
            path.configured_mode.to_string(),
            figure(|link| milliseconds(link.srtt_us)),
            figure(|link| link.delivery_rate_bits_per_s.map_or("-".into(), rate)),
            figure(loss),
            bytes(path.counters.sent_bytes),
            bytes(path.counters.received_bytes),
        ]);
    }
    table(&rows, out)
}

/// `polyrail paths NAME`.
pub(super) fn path(path: &PathState, out: &mut dyn Write) -> io::Result<()> {
    paths(std::slice::from_ref(path), out)?;
    let interface = path.interface.as_deref().unwrap_or("any interface");
    let (role, peer) = (path.role.as_str(), path.peer.as_deref().unwrap_or("?"));
    writeln!(
        out,
        "{role}, over {interface}, to {peer}; {} since {}",
        word(&path.state),
        path.since
    )?;
    if let Some(limit) = path.rate_limit_bits_per_s {
        writeln!(out, "rate limit {}", rate(limit))?;
    }
    if let Some(cap) = &path.cap {
        let used = cap.used_bytes.map_or("?".to_owned(), bytes);
        let until = cap.period_until.as_deref().unwrap_or("?");
        let (limit, at, level) = (bytes(cap.limit_bytes), cap.at, word(&cap.level));
        writeln!(out, "cap {limit}, used {used} ({level}), until {until}; at the cap: {at}")?;
    }
    if let Some(decision) = &path.decision {
        let (mode, reason, at) = (decision.mode, &decision.reason, decision.at);
        writeln!(out, "mode {mode} since {at}: {reason}")?;
    }
    if let Some(Demotion { reason, since, retry_in_s }) = &path.demotion {
        let retry = duration(*retry_in_s);
        writeln!(out, "QUIC demoted since {since}: {reason}; retry in {retry}")?;
    }
    let counters = serde_json::to_value(path.counters).unwrap_or_default();
    writeln!(out, "counters since the start:{}", fields(&counters, &[]))?;
    let heads =
        ["CONNECTION", "STATE", "MODE", "AGE", "RTT", "WINDOW", "IN FLIGHT", "TIMEOUTS", "TO"];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(path.connections.iter().map(connection));
    table(&rows, out)
}

fn connection(connection: &ConnectionState) -> [String; 9] {
    let link = connection.link.as_ref();
    let figure = |show: fn(&LinkState) -> String| link.map_or("-".to_owned(), show);
    [
        connection.id.to_string(),
        word(&connection.state),
        connection.mode.to_string(),
        duration(connection.age_s),
        figure(|link| milliseconds(link.srtt_us)),
        figure(|link| bytes(link.window_bytes)),
        figure(|link| bytes(link.in_flight_bytes)),
        figure(|link| link.timeouts.to_string()),
        connection.peer_address.map_or("-".to_owned(), |address| address.to_string()),
    ]
}

/// `polyrail reload`.
pub(super) fn reloaded(reloaded: &Reloaded, out: &mut dyn Write) -> io::Result<()> {
    for warning in &reloaded.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    for change in &reloaded.changes {
        writeln!(out, "{change}")?;
    }
    match reloaded.changes.len() {
        0 => writeln!(out, "reloaded: no changes"),
        count => writeln!(out, "reloaded: {count} changed"),
    }
}

/// One line of `polyrail events`.
pub(super) fn event(event: &Value, out: &mut dyn Write) -> io::Result<()> {
    let text = |key: &str| event[key].as_str().unwrap_or("-");
    let rest = fields(event, &["at", "event", "seq"]);
    writeln!(out, "{}  {:<14}{rest}", text("at"), text("event"))
}

/// Whether the daemon disconnected this reader because it was too slow.
pub(super) fn is_cut_off(event: &Value) -> bool {
    event["event"] == "cut_off"
}

/// ` key=value` for each field except `without`, sorted because the order of JSON maps depends on
/// cargo features.
pub(super) fn fields(object: &Value, without: &[&str]) -> String {
    let fields = object.as_object().into_iter().flatten();
    let fields = fields.filter(|(key, value)| !without.contains(&key.as_str()) && !value.is_null());
    let sorted: BTreeMap<&String, &Value> = fields.collect();
    sorted.into_iter().map(|(key, value)| format!(" {key}={value}")).collect()
}

/// Writes aligned columns.
pub(super) fn table<const N: usize>(rows: &[[String; N]], out: &mut dyn Write) -> io::Result<()> {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in rows {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row) {
            line += &format!("{cell:<width$}  ");
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// The JSON name of a state.
pub(super) fn word(state: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(state).unwrap_or_default();
    value.as_str().unwrap_or("?").replace('_', " ")
}

fn loss(link: &LinkState) -> String {
    match link.sent_packets {
        0 => "-".to_owned(),
        sent => format!("{:.1} %", link.lost_packets as f64 / sent as f64 * 100.0),
    }
}

pub(super) fn milliseconds(us: u64) -> String {
    format!("{:.1} ms", us as f64 / 1e3)
}

pub(super) fn rate(bits_per_s: u64) -> String {
    scaled(bits_per_s as f64, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s"])
}

pub(super) fn bytes(count: u64) -> String {
    scaled(count as f64, &["B", "kB", "MB", "GB", "TB"])
}

/// Formats a value in the largest unit that keeps it at least 1; units are 1000 apart.
pub(super) fn scaled(value: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut units = units.iter().copied();
    let mut unit = units.next().unwrap_or_default();
    while value >= 999.95 {
        let Some(larger) = units.next() else { break };
        (value, unit) = (value / 1000.0, larger);
    }
    let digits = usize::from(value.fract() != 0.0);
    format!("{value:.digits$} {unit}")
}

/// The two largest units of a time, as `3 h 5 min`.
pub(super) fn duration(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes} min {} s", whole % 60),
        (0, hours) => format!("{hours} h {minutes} min"),
        (days, hours) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_250), "1.2 kB");
        assert_eq!(bytes(3_000_000), "3 MB");
        assert_eq!(bytes(999_999), "1.0 MB");
        assert_eq!(bytes(u64::MAX), "18446744.1 TB");
        assert_eq!(rate(12_340_000), "12.3 Mbit/s");
        assert_eq!(milliseconds(40_123), "40.1 ms");
        assert_eq!(duration(2.04), "2.0 s");
        assert_eq!(duration(61.0), "1 min 1 s");
        assert_eq!(duration(11_100.0), "3 h 5 min");
        assert_eq!(duration(90_000.0), "1 d 1 h");
    }

    #[test]
    fn unrecorded_observations_are_shown_if_any() {
        let shown = |state: &WorkerState| {
            let mut text = Vec::new();
            let answer = LinkDbAnswer { state: state.clone(), sources: Vec::new() };
            linkdb(&answer, &mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        let text = shown(&WorkerState::default());
        for part in ["failed", "not recorded"] {
            assert!(!text.contains(part), "{text}");
        }
        let unrecorded = Unrecorded { unplaced: 3, untold: 4, ..Unrecorded::default() };
        let (failed, failures) = (Some("a fault".to_owned()), 1);
        let state = WorkerState { unrecorded, failed, failures, ..Default::default() };
        let text = shown(&state);
        for part in [
            "failed         panic: a fault; restart the daemon to enable forecasts\n",
            "not recorded   3 without a position, 4 with unknown outcome, 0 gaps, 0 of",
        ] {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
    }

    #[test]
    fn forecasts_have_time_and_probability() {
        assert_eq!(forecast(Some(3.0), Some(410)), "fails in 3.0 s (p=0.41)");
        let passed = "predicted failure point passed 3.0 s ago (p=0.41)";
        assert_eq!(forecast(Some(-3.0), Some(410)), passed);
        assert_eq!(forecast(None, None), "no forecast");
    }

    #[test]
    fn tables_line_up_and_events_are_lines() {
        let mut text = Vec::new();
        let rows = [["PATH", "STATE"], ["a", "up"], ["satellite", "no interface"]];
        table(&rows.map(|row| row.map(str::to_owned)), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, "PATH       STATE\na          up\nsatellite  no interface\n");

        let mut text = Vec::new();
        let value = serde_json::json!({
            "seq": 3, "at": "2026-11-21T12:40:00.007Z", "event": "mode_changed", "path": "a",
            "from": null, "to": "tls", "reason": "UDP is blocked",
        });
        event(&value, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let line = "2026-11-21T12:40:00.007Z  mode_changed   path=\"a\" reason=\"UDP is blocked\" \
                    to=\"tls\"\n";
        assert_eq!(text, line);
    }
}
