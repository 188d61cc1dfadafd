//! The JSON that the status page polls: a selection of the admin interface, without passengers'
//! addresses and without files of this host.

use std::sync::Arc;

use polyrail_config::Tables;
use serde_json::{Value, json};

use crate::control::Control;
use crate::{
    AdminError, EventRecord, PathState, SessionState, Status, Timestamp, UserState, UsersQuery,
};

/// The users in an answer, those with the most flows.
const USERS_MAX: usize = 200;

/// The newest events in an answer.
const EVENTS_MAX: usize = 40;

/// The current answer.
pub(super) async fn of<C: Tables>(control: &Arc<Control<C>>) -> Result<String, AdminError> {
    let status = control.status().await?;
    let paths = control.paths().await?;
    let query = UsersQuery { limit: USERS_MAX, ..UsersQuery::default() };
    let users = control.users(query).await?;
    // Without LinkDB, or while it does not answer, the page has no line.
    let linkdb = control.linkdb().await.unwrap_or_default();
    let answer = json!({
        "at": Timestamp::now(),
        "daemon": daemon(&status),
        "sessions": status.snapshot.sessions.iter().map(session).collect::<Vec<_>>(),
        "paths": paths.iter().map(path).collect::<Vec<_>>(),
        "users": users.users.iter().map(user).collect::<Vec<_>>(),
        "more_users": users.next.is_some(),
        "trips": linkdb.get("trips").unwrap_or(&Value::Null),
        "events": control.stream.latest(EVENTS_MAX).iter().map(event).collect::<Vec<_>>(),
    });
    Ok(answer.to_string() + "\n")
}

fn daemon(status: &Status) -> Value {
    json!({
        "role": status.role,
        "version": status.version,
        "started_at": status.started_at,
        "uptime_s": status.uptime_s,
        "scheduler": status.snapshot.scheduler,
        "drain": status.snapshot.drain,
    })
}

fn session(session: &SessionState) -> Value {
    json!({
        "peer": session.peer,
        "state": session.state,
        "age_s": session.age_s,
        "flows": session.flows,
    })
}

fn path(path: &PathState) -> Value {
    let link = path.link.as_ref().map(|link| {
        json!({
            "srtt_us": link.srtt_us,
            "sent_packets": link.sent_packets,
            "lost_packets": link.lost_packets,
        })
    });
    json!({
        "name": path.name,
        "carrier": path.carrier,
        "peer": path.peer,
        "role": path.role,
        "state": path.state,
        "since": path.since,
        "mode": path.mode,
        "cap": path.cap.as_ref().map(|cap| {
            json!({ "used_bytes": cap.used_bytes, "limit_bytes": cap.limit_bytes })
        }),
        "demotion": path.demotion.as_ref().map(|demotion| &demotion.reason),
        "sent_bytes": path.counters.sent_bytes,
        "received_bytes": path.counters.received_bytes,
        "link": link,
    })
}

/// An event without configured values, which may name files.
fn event(record: &EventRecord) -> Value {
    let mut value = serde_json::to_value(record).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        ["changes", "error", "addresses"].iter().for_each(|field| _ = fields.remove(*field));
    }
    value
}

fn user(user: &UserState) -> Value {
    json!({
        "user": user.user,
        "gateway": user.gateway,
        "flows": user.flows,
        "sent_bytes": user.sent_bytes,
        "received_bytes": user.received_bytes,
    })
}
