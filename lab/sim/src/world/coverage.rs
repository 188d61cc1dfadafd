//! What a world has come to, so that many of them can show that nothing was left out.

/// How often each thing happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Flows that ended in order at a side.
    pub closed: u64,
    /// Flows that one side reset and the other heard of.
    pub reset: u64,
    /// Flows refused by the session itself.
    pub refused: u64,
    /// Flows that lost their session.
    pub lost: u64,
    /// Sessions that ended for want of a path.
    pub lingered: u64,
    /// Tunnels that became paths.
    pub paths: u64,
    /// Tunnels that the session wanted closed.
    pub dismissed: u64,
    /// Writers that were held back.
    pub held_back: u64,
    /// Looks at a session that had three eighths of its memory full of what came: nearly all that
    /// stalled readers may hold.
    pub full_received: u64,
    /// The same for written bytes.
    pub full_sent: u64,
    /// Looks that found a stalled path.
    pub stalled: u64,
    /// Looks that found data sent again.
    pub reinjected: u64,
    /// Reports of one side to the other about a path.
    pub reported: u64,
    /// Tunnels that passed early data.
    pub early: u64,
    /// Attempts of races for a carrier.
    pub attempts: u64,
    /// Units that were withdrawn.
    pub withdrawn: u64,
    /// Early data that was replayed.
    pub replayed: u64,
}

impl Coverage {
    /// The counts by name.
    pub fn entries(&self) -> [(&'static str, u64); 17] {
        [
            ("closed", self.closed),
            ("reset", self.reset),
            ("refused", self.refused),
            ("lost", self.lost),
            ("lingered", self.lingered),
            ("paths", self.paths),
            ("dismissed", self.dismissed),
            ("held_back", self.held_back),
            ("full_received", self.full_received),
            ("full_sent", self.full_sent),
            ("stalled", self.stalled),
            ("reinjected", self.reinjected),
            ("reported", self.reported),
            ("early", self.early),
            ("attempts", self.attempts),
            ("withdrawn", self.withdrawn),
            ("replayed", self.replayed),
        ]
    }

    /// Adds what another world has come to.
    pub fn add(&mut self, other: &Self) {
        self.closed += other.closed;
        self.reset += other.reset;
        self.refused += other.refused;
        self.lost += other.lost;
        self.lingered += other.lingered;
        self.paths += other.paths;
        self.dismissed += other.dismissed;
        self.held_back += other.held_back;
        self.full_received += other.full_received;
        self.full_sent += other.full_sent;
        self.stalled += other.stalled;
        self.reinjected += other.reinjected;
        self.reported += other.reported;
        self.early += other.early;
        self.attempts += other.attempts;
        self.withdrawn += other.withdrawn;
        self.replayed += other.replayed;
    }
}
