//! Messages between the two daemons of a session that belong to no flow.

/// Selects the receiver of a message; the session does not interpret it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(pub u8);

/// How a session delivers a message. No message is retransmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Delivery {
    /// Only the newest message of its channel counts: it replaces one that has not left, and the
    /// receiver discards one that arrives after a newer one. A copy goes on each live path that
    /// has room.
    Latest,
    /// At once, on the fastest path. Messages that wait for a path do not replace one another.
    Prompt,
    /// Ahead of everything else, a copy on each path.
    Urgent,
    /// On one path, one message a round trip, so that flows do not notice.
    Background,
}
