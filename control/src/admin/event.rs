//! What happened, for `GET /v1/events`: one record a line.

use std::net::{IpAddr, SocketAddr};

use polyrail_model::TunnelMode;
use serde::{Deserialize, Serialize};

use super::error::ErrorBody;
use super::{Timestamp, mode_name};
use crate::reload::ChangeLine;

/// One line of the stream of events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its number: 1 for the daemon's first event, without gaps.
    pub seq: u64,
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// What happened. `path` is a path's name as in [`PathState::name`](super::PathState::name).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The daemon is ready.
    Started,
    /// A path carries for the first time, or again after it was down.
    PathUp {
        /// Which path.
        path: String,
        /// How it travels.
        #[serde(with = "mode_name::needed")]
        mode: TunnelMode,
        /// This end.
        local_address: Option<SocketAddr>,
        /// The other end.
        peer_address: Option<SocketAddr>,
    },
    /// A path has no connection any more.
    PathDown {
        /// Which path.
        path: String,
        /// Why.
        reason: String,
    },
    /// A path makes no progress.
    PathStalled {
        /// Which path.
        path: String,
        /// How it was noticed.
        reason: String,
    },
    /// A stalled path makes progress again.
    PathRecovered {
        /// Which path.
        path: String,
        /// How long it was stalled, in seconds.
        stalled_s: f64,
    },
    /// A path travels in another mode.
    ModeChanged {
        /// Which path.
        path: String,
        /// How it travelled; `None` when it had no connection.
        #[serde(with = "mode_name::optional")]
        from: Option<TunnelMode>,
        /// How it travels now.
        #[serde(with = "mode_name::needed")]
        to: TunnelMode,
        /// Why.
        reason: String,
    },
    /// A path moved to a fresh connection.
    PathRestarted {
        /// Which path.
        path: String,
        /// How the fresh connection travels.
        #[serde(with = "mode_name::needed")]
        mode: TunnelMode,
        /// What the restart was for.
        reason: String,
        /// Connections that were begun for it.
        attempts: u64,
        /// From its beginning until the fresh connection carried, in seconds.
        took_s: f64,
    },
    /// A path does without QUIC for a time.
    PathDemoted {
        /// Which path.
        path: String,
        /// Why.
        reason: String,
        /// When QUIC is tried again, in seconds from then.
        retry_in_s: f64,
    },
    /// A demoted path tries QUIC again.
    QuicRetried {
        /// Which path.
        path: String,
    },
    /// An operator changed a path through this interface.
    PathChanged {
        /// Which path.
        path: String,
        /// What was changed, in words for people.
        change: String,
    },
    /// A session is up.
    SessionUp {
        /// Which session.
        session: String,
        /// The node at the other end.
        peer: String,
    },
    /// A session has ended.
    SessionEnded {
        /// Which session.
        session: String,
        /// The node at the other end, if it was known.
        peer: Option<String>,
        /// Why.
        reason: String,
    },
    /// A reload was taken.
    Reloaded {
        /// What it changed.
        changes: Vec<ChangeLine>,
    },
    /// A reload was refused, and nothing changed.
    ReloadRefused {
        /// Why.
        error: ErrorBody,
    },
    /// An interface of a carrier changed.
    LinkChanged(LinkChange),
    /// Something that an operator should look at.
    Alarm {
        /// What.
        message: String,
        /// The path it is about, if any.
        path: Option<String>,
    },
    /// Events were lost: more came at once than the daemon could pass on.
    EventsLost {
        /// How many.
        count: u64,
    },
}

/// The whole state of one interface after something about it changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkChange {
    /// Its name.
    pub interface: String,
    /// The kernel's number for it; 0 when it is not there. A new number under an old name is a
    /// new interface.
    pub index: u32,
    /// Whether it is there.
    pub present: bool,
    /// Whether it can carry: switched on and, where the kernel knows, with a carrier.
    pub up: bool,
    /// Its usable addresses, in order; tentative and failed ones are left out.
    pub addresses: Vec<IpAddr>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_flat_objects_that_can_be_read_back() {
        let event = Event::ModeChanged {
            path: "a".to_owned(),
            from: None,
            to: TunnelMode::Tls,
            reason: "UDP is blocked".to_owned(),
        };
        let record = Record { seq: 7, at: Timestamp::now(), event };
        let value = serde_json::to_value(&record).unwrap();
        assert_eq!(value["event"], "mode_changed");
        assert_eq!((&value["to"], &value["from"]), (&"tls".into(), &serde_json::Value::Null));
        assert_eq!(serde_json::from_value::<Record>(value).unwrap(), record);

        let link = LinkChange {
            interface: "wwan0".to_owned(),
            index: 3,
            present: true,
            up: true,
            addresses: vec!["192.0.2.1".parse().unwrap()],
        };
        let record = Record { seq: 8, at: Timestamp::now(), event: Event::LinkChanged(link) };
        let value = serde_json::to_value(&record).unwrap();
        assert_eq!((&value["event"], &value["index"]), (&"link_changed".into(), &3.into()));
        assert_eq!(serde_json::from_value::<Record>(value).unwrap(), record);
    }
}
