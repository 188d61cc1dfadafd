//! A user's share next to other users.

/// A user's share: one with weight 4 gets four times as much as one with weight 1 while both want
/// more. From 1 to [`Weight::MAX`], so a peer that states any byte harms little.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(u8);

impl Weight {
    /// The greatest one.
    pub const MAX: u8 = 16;

    /// The nearest weight.
    pub fn new(weight: u8) -> Self {
        Self(weight.clamp(1, Self::MAX))
    }

    /// From 1 to [`Weight::MAX`].
    pub fn get(self) -> u8 {
        self.0
    }

    /// What so many bytes of the user cost it; at least 1.
    pub fn cost(self, bytes: u64) -> u64 {
        (bytes / u64::from(self.0)).max(1)
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self(1)
    }
}
