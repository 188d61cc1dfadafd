//! The metrics of a daemon's own state.

use polyrail_model::TunnelMode;

use super::figures::{LinkDbFigures, Scrape, SharedFigures};
use super::outcomes::outcomes;
use super::text::Read::{By, One};
use super::text::{Family, Value, flag, one_of, real, whole, wholes};
use crate::{CloudState, PathPhase, PathState, SessionPhase, SessionState, SourceState, Status};

/// The program.
pub(super) const BUILD: &[Family<Status>] =
    &[Family::gauge("build_info", "1; the labels name the version.", One(|_| flag(true)))];

/// The process and its configuration.
pub(super) const PROCESS: &[Family<Status>] = &[
    Family::gauge_in(
        "process_start_time",
        "seconds",
        "When the process started, since 1970.",
        One(|status| real(status.started_at.since_epoch_s())),
    ),
    Family::counter_in(
        "process_cpu",
        "seconds",
        "Processor time, user and kernel.",
        One(|status| real(status.process.cpu_s)),
    ),
    Family::gauge_in(
        "process_resident_memory",
        "bytes",
        "Resident memory.",
        One(|status| status.process.memory_resident_bytes.map(Value::Whole)),
    ),
    Family::gauge(
        "process_descriptors",
        "Open descriptors.",
        One(|status| status.process.descriptors_open.map(Value::Whole)),
    ),
    Family::gauge(
        "process_descriptors_max",
        "The limit of open descriptors.",
        One(|status| status.process.descriptors_max.map(Value::Whole)),
    ),
    Family::counter(
        "config_reloads",
        "Reloads of the configuration.",
        By("result", |status| {
            let config = &status.config;
            wholes([("applied", config.reloads), ("refused", config.reloads_refused)])
        }),
    ),
    Family::gauge_in(
        "config_loaded_time",
        "seconds",
        "When the configuration was last applied, since 1970.",
        One(|status| real(status.config.loaded_at.since_epoch_s())),
    ),
];

/// The data plane as a whole.
pub(super) const PLANE: &[Family<Scrape>] = &[
    Family::gauge(
        "sockets",
        "Sockets of users or servers.",
        One(|scrape| whole(scrape.status.snapshot.legs)),
    ),
    Family::gauge(
        "tunnels",
        "Tunnels that are up, and tunnels in their handshake.",
        By("state", |scrape| {
            let tunnels = &scrape.status.snapshot.tunnels;
            wholes([("up", tunnels.up), ("half_open", tunnels.half_open)])
        }),
    ),
    Family::gauge(
        "sessions",
        "Sessions by state.",
        By("state", |scrape| {
            let count = |phase| {
                let sessions = scrape.status.snapshot.sessions.iter();
                sessions.filter(|session| session.state == phase).count() as u64
            };
            wholes([
                ("opening", count(SessionPhase::Opening)),
                ("up", count(SessionPhase::Up)),
                ("lingering", count(SessionPhase::Lingering)),
            ])
        }),
    ),
    Family::counter(
        "flows_refused",
        "Flows that were refused or reset because of a limit.",
        By("reason", |scrape| {
            let refused = &scrape.plane.refused;
            let (user, all) = (("user_flows", refused.flows), ("overload", refused.overload));
            wholes([user, ("quota", refused.quota), all])
        }),
    ),
    Family::counter(
        "dns_queries_refused",
        "DNS queries that were refused because of a limit.",
        One(|scrape| whole(scrape.plane.refused.queries)),
    ),
    Family::counter(
        "udp_dropped",
        "Passengers' datagrams dropped at this node's sockets.",
        By("reason", |scrape| {
            let dropped = scrape.plane.udp_dropped.iter();
            dropped.map(|&(reason, count)| (reason, Value::Whole(count))).collect()
        }),
    ),
    Family::counter(
        "tunnel_datagrams_dropped",
        "Passengers' datagrams dropped by the tunnels; each copy counts.",
        By("reason", |scrape| {
            let dropped = scrape.plane.tunnel_dropped.iter();
            dropped.map(|&(reason, count)| (reason, Value::Whole(count))).collect()
        }),
    ),
    Family::counter(
        "log_lines_suppressed",
        "Log lines suppressed by rate limits.",
        One(|scrape| whole(scrape.plane.lines_suppressed)),
    ),
];

/// What a cloud alone has.
pub(super) const CLOUD: &[Family<Scrape>] = &[
    Family::counter(
        "tunnels_refused",
        "Tunnels closed because of a bad certificate.",
        One(|scrape| whole(scrape.status.snapshot.tunnels.refused)),
    ),
    Family::counter(
        "listener_datagrams_dropped",
        "Datagrams dropped by the listening UDP sockets.",
        One(|scrape| whole(scrape.status.snapshot.tunnels.datagrams_dropped)),
    ),
    Family::counter(
        "listener_retries",
        "Retry packets sent by the listening UDP sockets.",
        One(|scrape| whole(scrape.status.snapshot.tunnels.retries_sent)),
    ),
    Family::gauge(
        "dials",
        "Dials under way, and dials that wait for a free place.",
        By("state", |scrape| {
            let Some(cloud) = &scrape.plane.cloud else { return Vec::new() };
            wholes([("active", cloud.dials), ("waiting", cloud.dials_waiting)])
        }),
    ),
    Family::counter(
        "dials_failed",
        "Dials that failed.",
        By("reason", |scrape| {
            let failed = scrape.plane.cloud.iter().flat_map(|cloud| &cloud.dials_failed);
            failed.map(|&(reason, count)| (reason, Value::Whole(count))).collect()
        }),
    ),
    Family::gauge(
        "workers",
        "Workers: data planes with an event loop each.",
        One(|scrape| scrape.plane.cloud.as_ref().and_then(|cloud| whole(cloud.workers))),
    ),
    Family::counter(
        "handed_over",
        "Tunnels and datagrams that arrived at a worker and belong to another one.",
        By("what", |scrape| {
            let counts = scrape.plane.cloud.iter().flat_map(|cloud| &cloud.handed_over);
            counts.map(|&(what, count)| (what, Value::Whole(count))).collect()
        }),
    ),
    Family::counter(
        "gateway_reports_ignored",
        "Reports of gateways that were invalid or came too fast.",
        One(|scrape| scrape.plane.cloud.as_ref().and_then(|cloud| whole(cloud.reports_ignored))),
    ),
    Family::gauge(
        "carriers_unlisted",
        "Carriers without metrics, because their gateway uses too many names.",
        One(|scrape| whole(scrape.unlisted)),
    ),
];

/// A cloud of a gateway.
pub(super) const CLOUD_OF_GATEWAY: &[Family<CloudState>] = &[Family::gauge(
    "cloud_current",
    "1 if new flows go to the cloud.",
    One(|cloud| flag(cloud.current)),
)];

/// A session.
pub(super) const SESSION: &[Family<SessionState>] = &[
    Family::gauge_in(
        "session_age",
        "seconds",
        "Time since the session came up.",
        One(|session| real(session.age_s)),
    ),
    Family::gauge("flows", "Open flows.", One(|session| whole(session.flows))),
    Family::counter(
        "flows_opened",
        "Flows opened since the session began.",
        One(|session| whole(session.flows_opened)),
    ),
    Family::gauge("users", "Users with open flows.", One(|session| whole(session.users))),
    Family::gauge_in(
        "session_memory",
        "bytes",
        "Bytes in the session's buffers: received and unread, sent and unacknowledged.",
        By("direction", |session| {
            let received = ("received", session.memory_received_bytes);
            wholes([received, ("sent", session.memory_sent_bytes)])
        }),
    ),
    Family::gauge_in(
        "session_memory_max",
        "bytes",
        "The limit of each of the two.",
        One(|session| whole(session.memory_max_bytes)),
    ),
    Family::gauge_in(
        "session_credit",
        "bytes",
        "Bytes that may be sent before the peer grants more.",
        One(|session| whole(session.credit_bytes)),
    ),
    Family::counter_in(
        "reinjected",
        "bytes",
        "Users' bytes sent more than once: reinjections and redundant copies.",
        One(|session| whole(session.reinjected_bytes)),
    ),
    Family::gauge(
        "bindings",
        "Passengers' endpoints that have sent datagrams.",
        One(|session| whole(session.bindings)),
    ),
    Family::counter(
        "datagrams_sent",
        "Passengers' datagrams sent to the peer, without copies.",
        One(|session| whole(session.datagrams_sent)),
    ),
    Family::counter(
        "datagrams_received",
        "Passengers' datagrams received from the peer, without copies.",
        One(|session| whole(session.datagrams_received)),
    ),
    Family::counter(
        "datagram_copies",
        "Copies of datagrams, which travel over a second carrier.",
        By("direction", |session| {
            let received = ("received", session.datagram_copies_received);
            wholes([received, ("sent", session.datagram_copies_sent)])
        }),
    ),
    Family::counter(
        "datagrams_dropped",
        "Passengers' datagrams dropped by the session.",
        By("reason", |session| {
            let mut counts = [
                ("queue", session.datagrams_dropped),
                ("too_long", session.datagrams_too_long),
                ("bindings", session.datagrams_unbound),
                ("stale", session.datagrams_stale),
                ("codel", session.datagrams_codel),
                ("ended", session.datagrams_ended),
            ];
            let named: u64 = counts[1..].iter().map(|(_, count)| count).sum();
            counts[0].1 = counts[0].1.saturating_sub(named);
            wholes(counts)
        }),
    ),
    Family::counter(
        "messages_dropped",
        "Messages to the peer that were dropped because too many waited.",
        One(|session| whole(session.messages_dropped)),
    ),
];

/// The states of a path by name.
pub(super) const STATES: [(&str, PathPhase); 7] = [
    ("up", PathPhase::Up),
    ("stalled", PathPhase::Stalled),
    ("down", PathPhase::Down),
    ("disabled", PathPhase::Disabled),
    ("no_interface", PathPhase::NoInterface),
    ("capped", PathPhase::Capped),
    ("standby", PathPhase::Standby),
];

/// The modes of a path by name.
pub(super) const MODES: [(&str, TunnelMode); 2] =
    [("quic", TunnelMode::Quic), ("tls", TunnelMode::Tls)];

/// A carrier's path.
pub(super) const PATH: &[Family<PathState>] = &[
    Family::gauge(
        "path_up",
        "1 if the path carries data or is ready to, otherwise 0.",
        One(|path| flag(path.state == PathPhase::Up)),
    ),
    Family::gauge(
        "path_state",
        "1 for the path's state, 0 for the others.",
        By("state", |path| one_of(STATES, Some(path.state))),
    ),
    Family::gauge(
        "path_mode",
        "1 for the mode of the connection in use, 0 for the other.",
        By("mode", |path| one_of(MODES, path.mode)),
    ),
    Family::gauge_in(
        "path_rtt",
        "seconds",
        "Smoothed round-trip time.",
        One(|path| path.link.and_then(|link| real(link.srtt_us as f64 / 1e6))),
    ),
    Family::gauge_in(
        "path_rtt_min",
        "seconds",
        "Least round-trip time.",
        One(|path| path.link.and_then(|link| real(link.rtt_min_us as f64 / 1e6))),
    ),
    Family::gauge_in(
        "path_delivery_rate",
        "bits_per_second",
        "Recent delivery rate.",
        One(|path| path.link.and_then(|link| link.delivery_rate_bits_per_s).and_then(whole)),
    ),
    Family::gauge_in(
        "path_window",
        "bytes",
        "Congestion window.",
        One(|path| path.link.and_then(|link| whole(link.window_bytes))),
    ),
    Family::gauge_in(
        "path_in_flight",
        "bytes",
        "Bytes in flight.",
        One(|path| path.link.and_then(|link| whole(link.in_flight_bytes))),
    ),
    Family::gauge(
        "path_connections",
        "Connections of the carrier.",
        One(|path| whole(path.connections.len() as u64)),
    ),
    Family::counter_in(
        "path_sent",
        "bytes",
        "Users' bytes sent, copies included.",
        One(|path| whole(path.counters.sent_bytes)),
    ),
    Family::counter_in(
        "path_received",
        "bytes",
        "Users' bytes received, copies included.",
        One(|path| whole(path.counters.received_bytes)),
    ),
    Family::counter(
        "path_sent_packets",
        "Data packets sent, those lost included.",
        One(|path| whole(path.counters.sent_packets)),
    ),
    Family::counter(
        "path_lost_packets",
        "Packets declared lost.",
        One(|path| whole(path.counters.lost_packets)),
    ),
    Family::counter("path_stalls", "Path stalls.", One(|path| whole(path.counters.stalls))),
    Family::counter("path_restarts", "Path restarts.", One(|path| whole(path.counters.restarts))),
    Family::counter(
        "path_mode_changes",
        "Changes from one mode to the other.",
        One(|path| whole(path.counters.mode_changes)),
    ),
    Family::counter(
        "path_demotions",
        "Demotions from QUIC to TLS.",
        One(|path| whole(path.counters.demotions)),
    ),
    Family::counter(
        "path_attempts",
        "Connections begun.",
        By("mode", |path| {
            let counters = &path.counters;
            wholes([("quic", counters.quic_attempts), ("tls", counters.tls_attempts)])
        }),
    ),
    Family::counter(
        "path_attempts_unanswered",
        "Connections begun that the cloud did not answer.",
        By("mode", |path| {
            let counters = &path.counters;
            let quic = ("quic", counters.quic_attempts_unanswered);
            wholes([quic, ("tls", counters.tls_attempts_unanswered)])
        }),
    ),
];

/// LinkDB.
pub(super) const LINKDB: &[Family<LinkDbFigures>] = &[
    Family::gauge(
        "linkdb_up",
        "1 if the database is open and its thread answers, otherwise 0.",
        One(|linkdb| flag(linkdb.store.open && linkdb.failures == 0)),
    ),
    Family::gauge(
        "linkdb_entries",
        "Entries in the database.",
        One(|linkdb| linkdb.store.stats.as_ref().and_then(|stats| whole(stats.entries))),
    ),
    Family::gauge_in(
        "linkdb_file",
        "bytes",
        "Size of the database's file.",
        One(|linkdb| linkdb.store.stats.as_ref().and_then(|stats| whole(stats.file_bytes))),
    ),
    Family::gauge(
        "linkdb_entries_waiting",
        "Entries in memory that wait to be written.",
        One(|linkdb| whole(linkdb.store.waiting)),
    ),
    Family::counter(
        "linkdb_entries_lost",
        "Entries dropped because the database could not be written for too long.",
        One(|linkdb| whole(linkdb.store.lost)),
    ),
    Family::counter(
        "linkdb_inputs_dropped",
        "Inputs dropped: too many, invalid, or not permitted.",
        One(|linkdb| whole(linkdb.inputs_dropped)),
    ),
    Family::counter(
        "linkdb_outputs_dropped",
        "Outputs dropped because the data plane could not keep up.",
        One(|linkdb| whole(linkdb.outputs_dropped)),
    ),
    Family::counter(
        "linkdb_handovers",
        "Handovers recorded here, and received from the peer.",
        By("origin", |linkdb| {
            wholes([("recorded", linkdb.recorded), ("received", linkdb.received)])
        }),
    ),
    Family::counter(
        "linkdb_unrecorded",
        "Observations that became no record.",
        By("reason", |linkdb| {
            let unrecorded = &linkdb.unrecorded;
            wholes([
                ("unplaced", unrecorded.unplaced),
                ("gaps", unrecorded.gaps),
                ("untold", unrecorded.untold),
                ("strangers", unrecorded.strangers),
                ("dropped", unrecorded.dropped),
            ])
        }),
    ),
    Family::gauge(
        "linkdb_shared_up",
        "1 if the database that clouds share is reachable, otherwise 0.",
        One(|linkdb| linkdb.shared.as_ref().and_then(|shared| flag(shared.connected))),
    ),
    Family::gauge(
        "linkdb_shared_entries_waiting",
        "Entries that wait to be sent to the shared database, and to be received from it.",
        By("direction", |linkdb| {
            of_shared(linkdb, |shared| [("sent", shared.waiting), ("received", shared.behind)])
        }),
    ),
    Family::counter(
        "linkdb_shared_entries",
        "Entries sent to the shared database, and received from it.",
        By("direction", |linkdb| {
            of_shared(linkdb, |shared| [("sent", shared.sent), ("received", shared.received)])
        }),
    ),
    Family::counter(
        "linkdb_shared_refused",
        "Logs that the shared database did not take at once: busy, or beyond the quota.",
        One(|linkdb| linkdb.shared.as_ref().and_then(|shared| whole(shared.refused))),
    ),
    Family::counter(
        "linkdb_panics",
        "Panics of LinkDB's thread; forecasts are off after one.",
        One(|linkdb| whole(linkdb.failures)),
    ),
    Family::counter(
        "forecast_alarms",
        "Predicted failures of handovers.",
        One(|linkdb| whole(linkdb.forecasts.alarms)),
    ),
    Family::counter(
        "forecast_outcomes",
        "Handovers by how their forecast was.",
        By("outcome", |linkdb| outcomes(&linkdb.forecasts)),
    ),
];

/// A source of telemetry.
pub(super) const SOURCE: &[Family<SourceState>] = &[
    Family::gauge(
        "telemetry_connected",
        "1 if the source is connected, otherwise 0.",
        One(|source| flag(source.state == "connected")),
    ),
    Family::counter(
        "telemetry_observations",
        "Observations of the source.",
        One(|source| whole(source.observations)),
    ),
    Family::counter(
        "telemetry_errors",
        "Invalid lines or messages and refused requests of the source.",
        One(|source| whole(source.errors)),
    ),
];

/// Two figures of the shared database; none without one.
fn of_shared(
    linkdb: &LinkDbFigures,
    read: fn(&SharedFigures) -> [(&'static str, u64); 2],
) -> Vec<(&'static str, Value)> {
    linkdb.shared.as_ref().map_or(Vec::new(), |shared| wholes(read(shared)))
}
