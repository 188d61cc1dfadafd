//! The frames as values.

use std::ops::Range;

use polyrail_model::{
    Bitrate, Channel, Destination, Families, FlowId, InstanceId, PathId, SessionId, UserId,
};

/// One frame. Data borrows from the bytes it was decoded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Opens a session, or adds a path to the session of the same instance.
    Hello {
        /// The gateway process.
        instance: InstanceId,
        /// Path number, flags and carrier name.
        greeting: Greeting,
        /// What the gateway grants.
        terms: Terms,
    },
    /// Adds a path to a session.
    Join {
        /// The session.
        session: SessionId,
        /// HMAC under the key of the connection that opened the session.
        proof: [u8; 32],
        /// Path number, flags and carrier name.
        greeting: Greeting,
    },
    /// Answers a HELLO or JOIN.
    Welcome {
        /// The session.
        session: SessionId,
        /// The counter that is answered.
        counter: u64,
        /// The counter of the HELLO whose connection keys the proofs.
        founder: u64,
        /// The address families that the cloud reaches.
        families: Families,
        /// What the cloud grants.
        terms: Terms,
    },
    /// Refuses a HELLO or JOIN.
    Reject {
        /// Why, for programs.
        code: RejectCode,
        /// Why, for people.
        reason: String,
    },
    /// Opens a flow; its first data rides along.
    Open {
        /// The flow and where it wants to go.
        open: Open,
        /// The first data.
        data: &'a [u8],
    },
    /// Bytes of a flow.
    Data {
        /// The flow.
        flow: FlowId,
        /// Sequence number of the first byte.
        sequence: u64,
        /// When it was sent, in microseconds of the sender's clock.
        sent_us: u64,
        /// End of the flow, tail.
        marks: DataMarks,
        /// The bytes.
        data: &'a [u8],
    },
    /// What has arrived of a flow, and how far the sender may go.
    Ack(Ack),
    /// How far the sender may go; flow zero stands for the session.
    Window {
        /// The flow, or zero.
        flow: FlowId,
        /// The sequence number (or sum of them) that may not be passed.
        limit: u64,
        /// What the reader has taken.
        drained: u64,
    },
    /// Ends both directions of a flow.
    Reset(Reset),
    /// Asks for a PONG on the same path.
    Ping {
        /// Returned unchanged.
        token: u64,
        /// When it was sent, in microseconds of the sender's clock.
        sent_us: u64,
    },
    /// Answers a PING.
    Pong {
        /// From the PING.
        token: u64,
        /// From the PING.
        sent_us: u64,
        /// When the PING arrived, in microseconds of the answerer's clock.
        received_us: u64,
    },
    /// A message that belongs to no flow.
    Message {
        /// The receiver of the message.
        channel: Channel,
        /// A message with a higher serial on the same channel replaces it.
        latest: bool,
        /// Rises with each message of one sender in a session: it identifies copies.
        serial: u64,
        /// For how long it was queued, in microseconds.
        waited_us: u64,
        /// The message, at most [`super::MESSAGE_MAX`] bytes.
        payload: &'a [u8],
    },
    /// What the sender says about a path, on that path or on others.
    PathStatus(Notice),
    /// The sender will open no more flows and ends the session when the open ones have ended.
    GoAway {
        /// Why, for people.
        reason: String,
    },
    /// A frame of a type, or about something, that this version does not know; skipped.
    Unknown {
        /// Its type.
        kind: u8,
    },
}

/// What a HELLO and a JOIN say of their path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The path's number: rises with each HELLO and JOIN of an instance, never accepted twice.
    pub counter: u64,
    /// Use the path only when no other is left.
    pub backup: bool,
    /// The carrier's name, at most [`super::CARRIER_NAME_MAX`] bytes.
    pub carrier: String,
}

/// What one side grants the other from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Window of each flow that the other side begins to send on, in bytes.
    pub window: u64,
    /// Session credit, in bytes; also the size of the memory that stands behind it.
    pub credit: u64,
}

/// The fields of an OPEN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The flow.
    pub flow: FlowId,
    /// Whose it is.
    pub user: UserId,
    /// Window for the direction towards the opener, in bytes.
    pub window: u64,
    /// When it was sent, in microseconds of the sender's clock.
    pub sent_us: u64,
    /// End of the flow, tail.
    pub marks: DataMarks,
    /// Where it wants to go.
    pub destination: Destination,
}

/// What is said of the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataMarks {
    /// The direction ends behind this run; the end takes up one sequence number.
    pub fin: bool,
    /// The run belongs to the tail of the flow as far as the sender knows.
    pub tail: bool,
}

/// The fields of an ACK.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// The flow.
    pub flow: FlowId,
    /// Everything of the flow has arrived or is not wanted any more.
    pub done: bool,
    /// The connection to the server stands.
    pub dialed: bool,
    /// All below this has arrived.
    pub cumulative: u64,
    /// The sequence number that may not be passed.
    pub limit: u64,
    /// What the reader has taken.
    pub drained: u64,
    /// The latest arrival, for delay measurement.
    pub echo: Option<Echo>,
    /// What has arrived beyond, rising and disjoint; at most [`super::ACK_RANGES_MAX`].
    pub ranges: Vec<Range<u64>>,
}

/// An arrival, echoed to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// The path on which it arrived.
    pub path: PathId,
    /// Its send time, by the sender's clock.
    pub sent_us: u64,
    /// Its arrival, by the receiver's clock.
    pub received_us: u64,
}

/// The fields of a RESET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The flow.
    pub flow: FlowId,
    /// Answers a RESET of the other side.
    pub answer: bool,
    /// Why.
    pub reason: ResetReason,
    /// The highest sequence number used: what the flow took of the session credit.
    pub last: u64,
    /// All below this is delivered before the reset takes effect.
    pub after: u64,
}

/// What one side says about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The path that it is about.
    pub path: PathId,
    /// Rises with each notice of one sender in a session: it tells repetitions and late ones.
    pub serial: u64,
    /// What is said.
    pub said: Said,
}

/// The things that a PATH_STATUS may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// What the sender has out on the path makes no progress.
    Stalled,
    /// The path is held to this rate, as policers of UDP do.
    Policed {
        /// The rate.
        rate: Bitrate,
    },
    /// From now on the path is used only when no other is left, or like any other.
    Backup {
        /// Only when no other is left.
        backup: bool,
    },
}

macro_rules! codes {
    (
        $(#[$about:meta])*
        $name:ident { $($(#[$doc:meta])* $variant:ident = $code:literal, $text:literal;)* }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The number on the wire.
            pub fn code(self) -> u64 {
                match self { $(Self::$variant => $code,)* }
            }
        }

        impl TryFrom<u64> for $name {
            type Error = UnknownCode;
            fn try_from(code: u64) -> Result<Self, UnknownCode> {
                match code { $($code => Ok(Self::$variant),)* other => Err(UnknownCode(other)) }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $text,)* })
            }
        }
    };
}

/// A code that this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown code {0}")]
pub struct UnknownCode(pub u64);

codes! {
    /// Why a HELLO or JOIN is refused.
    RejectCode {
        /// No such session: the cloud was restarted, or the session's linger is over.
        Unknown = 1, "the session is unknown";
        /// The session belongs to another certificate, or the proof is wrong.
        NotYours = 2, "the session belongs to another gateway";
        /// The counter was used before.
        Replayed = 3, "the path counter was used before";
        /// No room for another session or path.
        Overload = 4, "too many sessions or paths";
        /// A newer process with the same certificate has taken over.
        Superseded = 5, "a newer process with the same certificate has taken over";
        /// The peer broke the protocol.
        Protocol = 6, "the peer broke the protocol";
    }
}

codes! {
    /// Why a flow is reset.
    ResetReason {
        /// The endpoint of the connection reset it.
        PeerReset = 1, "reset by its endpoint";
        /// The server refused the connection.
        Refused = 2, "connection refused";
        /// No route to the server.
        Unreachable = 3, "destination unreachable";
        /// The server did not answer.
        TimedOut = 4, "connection timed out";
        /// The access list forbids the destination.
        Forbidden = 5, "destination forbidden";
        /// The host name does not exist.
        NameNotFound = 6, "host name not found";
        /// A bound on flows or memory was reached.
        Overload = 7, "too many flows";
        /// The session ended.
        SessionLost = 8, "the session ended";
        /// Nothing moved for too long.
        Idle = 9, "idle for too long";
        /// The peer broke the protocol on this flow.
        Protocol = 10, "protocol violation";
        /// An error of the local system.
        Internal = 11, "internal error";
    }
}
