//! How the operator of a gateway wants the paths of a carrier used.

use crate::Bitrate;

/// How the operator wants the paths of a carrier used. The gateway states it to the cloud, and each
/// side follows it for the data that it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathWish {
    /// Which paths go first.
    pub rank: PathRank,
    /// Its bytes cost money: it carries no copies.
    pub metered: bool,
    /// The most that each side sends over a path of the carrier; `None`: no limit.
    pub rate_limit: Option<Bitrate>,
}

/// Which paths go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathRank {
    /// Used whenever it helps.
    #[default]
    Primary,
    /// Used while no primary has room.
    Secondary,
    /// Used only while no other path is alive.
    Backup,
}

impl PathWish {
    /// A backup without further wishes.
    pub const BACKUP: Self = Self { rank: PathRank::Backup, metered: false, rate_limit: None };

    /// Whether it is a backup.
    pub fn is_backup(&self) -> bool {
        self.rank == PathRank::Backup
    }
}
