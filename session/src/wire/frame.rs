//! The frames as values.

use std::ops::Range;

use polyrail_model::{
    BindingId, Bitrate, Channel, Destination, Families, FlowId, InstanceId, PathId, PathRank,
    SessionId, UserId, Weight,
};

/// The version in every header.
pub const VERSION: u8 = 1;

/// Version, type and payload length.
pub const HEADER: usize = 4;

/// The longest payload of a frame: header and payload fit into a TLS record of 16,384 bytes.
pub const PAYLOAD_MAX: usize = 16_384 - HEADER;

/// The maximum number of ranges in an ACK.
pub const ACK_RANGES_MAX: usize = 32;

/// The longest reason text of a REJECT or GOAWAY, in bytes.
pub const REASON_MAX: usize = 256;

/// The longest carrier name, in bytes.
pub const CARRIER_NAME_MAX: usize = 32;

/// The longest MESSAGE, header included, in bytes: it fits a packet.
pub const MESSAGE_FRAME_MAX: usize = 1_200;

/// The longest payload of a message, in bytes: [`MESSAGE_FRAME_MAX`] less the frame's own fields.
pub const MESSAGE_MAX: usize = MESSAGE_FRAME_MAX - HEADER - 18;

/// The longest contents of a datagram, in bytes.
pub const DATAGRAM_MAX: usize = 2_048;

/// One frame. Data borrows from the bytes it was decoded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Opens a session, or adds a path to the session of the same instance.
    Hello {
        /// The gateway process.
        instance: InstanceId,
        /// Path number, flags and carrier name.
        greeting: Greeting,
        /// The gateway's terms.
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
        /// What the cloud reaches and carries.
        offer: Offer,
        /// The cloud's terms.
        terms: Terms,
    },
    /// Refuses a HELLO or JOIN.
    Reject {
        /// The reason, as a code.
        code: RejectCode,
        /// The reason, in words.
        reason: String,
    },
    /// Opens a flow, with its first data.
    Open {
        /// The flow and its destination.
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
    /// The received ranges of a flow, and its limit.
    Ack(Ack),
    /// The limit of a flow; flow zero is the session.
    Window {
        /// The flow, or zero.
        flow: FlowId,
        /// The sequence number (or sum of them) that must not be exceeded.
        limit: u64,
        /// The number of bytes that the reader has taken.
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
        /// When the PING arrived, in microseconds of the receiver's clock.
        received_us: u64,
    },
    /// A message that belongs to no flow.
    Message {
        /// The receiver of the message.
        channel: Channel,
        /// A message with a higher serial on the same channel replaces it.
        latest: bool,
        /// Rises with each message of a sender in a session, to identify copies.
        serial: u64,
        /// How long it was queued, in microseconds.
        waited_us: u64,
        /// The message, at most [`MESSAGE_MAX`] bytes.
        payload: &'a [u8],
    },
    /// A statement about a path, on that path or on others.
    PathStatus(Notice),
    /// A datagram of a passenger, or one for it.
    Datagram {
        /// Its binding and its other end.
        datagram: Datagram,
        /// Its contents, at most [`DATAGRAM_MAX`] bytes.
        data: &'a [u8],
    },
    /// The sender opens no more flows and ends the session after the open ones.
    GoAway {
        /// The reason, in words.
        reason: String,
    },
    /// A frame of a type, or with a statement, that this version does not know; skipped.
    Unknown {
        /// Its type.
        kind: u8,
    },
}

/// The properties of a path in HELLO and JOIN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The path's number: rises with each HELLO and JOIN of an instance, accepted once.
    pub counter: u64,
    /// Which paths go first.
    pub rank: PathRank,
    /// Its bytes cost money: it carries no copies.
    pub metered: bool,
    /// The carrier's name, at most [`CARRIER_NAME_MAX`] bytes.
    pub carrier: String,
}

/// What a cloud reaches and carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// The address families that it reaches.
    pub families: Families,
    /// It carries datagrams. Earlier versions do not.
    pub datagrams: bool,
    /// It takes gateways' reports, for its metrics.
    pub reports: bool,
    /// It serves speed tests.
    pub speedtests: bool,
    /// It takes streams of datagrams. Earlier versions do not.
    pub streams: bool,
}

/// The initial credit that a side grants its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Window of each new flow, in bytes.
    pub window: u64,
    /// Session credit, in bytes; also the size of the memory of this side.
    pub credit: u64,
}

/// The fields of an OPEN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The flow.
    pub flow: FlowId,
    /// The user who opened it.
    pub user: UserId,
    /// Window for the direction towards the opener, in bytes.
    pub window: u64,
    /// When it was sent, in microseconds of the sender's clock.
    pub sent_us: u64,
    /// End of the flow, tail.
    pub marks: DataMarks,
    /// The server or binding to which it leads.
    pub target: Target,
}

/// The far end of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A server to dial.
    Server(Destination),
    /// The peer's end of a binding: the flow is a stream of its DATAGRAM frames, in both
    /// directions.
    Binding(BindingId),
}

/// The fields of a DATAGRAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The passenger's endpoint.
    pub binding: BindingId,
    /// Rises by one with each datagram of a binding and a direction, to identify copies.
    pub sequence: u64,
    /// When it was sent, in microseconds of the sender's clock.
    pub sent_us: u64,
    /// The user, from the gateway.
    pub user: Option<UserId>,
    /// The user's share, from the gateway.
    pub weight: Weight,
    /// The other end: to which the passenger sends, or which has sent.
    pub remote: Destination,
}

/// The flags of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataMarks {
    /// The direction ends after this run; the end takes one sequence number.
    pub fin: bool,
    /// The sender knows that the run belongs to the tail of the flow.
    pub tail: bool,
    /// The user's share, from the gateway.
    pub weight: Weight,
}

/// The fields of an ACK.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// The flow.
    pub flow: FlowId,
    /// All data of the flow has arrived or is not needed any more.
    pub done: bool,
    /// The connection to the server is established.
    pub dialed: bool,
    /// All numbers below have arrived.
    pub cumulative: u64,
    /// The sequence number that must not be exceeded.
    pub limit: u64,
    /// The number of bytes that the reader has taken.
    pub drained: u64,
    /// The latest arrival, for delay measurement.
    pub echo: Option<Echo>,
    /// Ranges received above `cumulative`, rising and disjoint; at most [`ACK_RANGES_MAX`].
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
    /// It answers a RESET of the peer.
    pub answer: bool,
    /// The reason.
    pub reason: ResetReason,
    /// One above the highest sequence number used: the flow's use of the session credit.
    pub last: u64,
    /// All numbers below are delivered before the reset takes effect.
    pub after: u64,
}

/// A statement about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The path.
    pub path: PathId,
    /// Rises with each notice of a sender in a session, to identify copies and outdated notices.
    pub serial: u64,
    /// The statement.
    pub said: Said,
}

/// The statements of a PATH_STATUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// The sender's data in flight on the path makes no progress.
    Stalled,
    /// The network polices the path to this rate.
    Policed {
        /// The rate.
        rate: Bitrate,
    },
    /// How the gateway's operator wants the path used from now on.
    Use {
        /// Which paths go first.
        rank: PathRank,
        /// Its bytes cost money: it carries no copies.
        metered: bool,
    },
    /// The most that each side may send over the path; `None`: no limit.
    Limit {
        /// The rate.
        rate: Option<Bitrate>,
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

            pub(super) fn from_code(code: u64) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $text,)* })
            }
        }
    };
}

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
        /// The gateway's certificate was revoked or has expired.
        Unauthorized = 7, "the certificate is revoked or has expired";
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
        Overload = 7, "too many flows, or too many unread bytes";
        /// The session ended.
        SessionLost = 8, "the session ended";
        /// No byte moved for too long.
        Idle = 9, "idle for too long";
        /// The peer broke the protocol on this flow.
        Protocol = 10, "protocol violation";
        /// An error of the local system.
        Internal = 11, "internal error";
        /// The user has reached a quota, or has the most when a bound of all users is reached.
        Quota = 12, "the user's quota is used up";
    }
}
