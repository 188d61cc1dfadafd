//! Telling how far the trips are known, while digests differ: which page comes when.
//!
//! In a world that stands still it goes through all trips, the newest first. Where others write at
//! the same time the digests may differ for ever, and not for what is old: a page after which only
//! trips moved that had moved before in this session is the last one for now. The next round begins
//! at the newest page again, then goes on where the last one ended, and the pauses between the
//! rounds grow. So each round tells of one older page at least, and all are told in the end; while
//! something comes of the pages there is no pause.
//!
//! ```text
//!          digests differ            differ, and still, or something came of it
//!   Quiet ----------------> Telling <--------+
//!     ^  ^                   |  |  |  +------+
//!     |  +--- equal ---------+  |  | next page
//!     +--- after a pause <------+--+ only what moves anyway moved; or all was told
//! ```

use std::time::{Duration, Instant};

use polyrail_model::TripId;

use super::bounded::BoundedSet;
use super::ledger::Rank;

/// Up to where the trips were told, the newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Nothing,
    Until(Rank),
}

impl Told {
    /// The place of the last trip that was told, if any was.
    pub fn rank(self) -> Option<Rank> {
        match self {
            Self::Nothing => None,
            Self::Until(rank) => Some(rank),
        }
    }

    /// The one of the two up to which more was told.
    fn further(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, told) | (told, Self::Nothing) => told,
            (Self::Until(one), Self::Until(other)) => Self::Until(one.min(other)),
        }
    }
}

#[derive(Debug)]
pub(super) struct Walk {
    /// Up to where the trips were told in this round; none while quiet.
    told: Option<Told>,
    /// Where a round that was broken off goes on, once the newest were told.
    resume: Told,
    /// No page but the newest was told in this round.
    newest: bool,
    /// The next page is due.
    due: bool,
    /// Since the last page trips have moved that had not before.
    fruit: bool,
    /// Since the last page trips have moved once more.
    stirred: bool,
    /// The same of the whole round.
    round_fruit: bool,
    round_stirred: bool,
    /// The next round begins no sooner.
    at: Instant,
    pause: Duration,
    /// Trips of which new handovers were seen or exchanged in this session.
    moved: BoundedSet,
}

impl Walk {
    pub fn new(now: Instant) -> Self {
        Self {
            told: None,
            resume: Told::Nothing,
            newest: true,
            due: false,
            fruit: false,
            stirred: false,
            round_fruit: false,
            round_stirred: false,
            at: now,
            pause: PAUSE_MIN,
            moved: BoundedSet::new(MOVED_MAX),
        }
    }

    /// Trips are being told.
    pub fn is_on(&self) -> bool {
        self.told.is_some()
    }

    /// One side has got handovers of this trip.
    pub fn moved(&mut self, trip: TripId) {
        let first = self.moved.insert(trip);
        (self.fruit, self.stirred) = (self.fruit | first, self.stirred | !first);
        self.round_fruit |= first;
        self.round_stirred |= !first;
    }

    /// Both hold the same.
    pub fn equal(&mut self, now: Instant) {
        (self.told, self.resume, self.due) = (None, Told::Nothing, false);
        (self.at, self.pause) = (now, PAUSE_MIN);
    }

    /// The digests differ. Returns until when to be quiet, if a round ends here.
    pub fn differ(&mut self, now: Instant) -> Option<Instant> {
        let Some(told) = self.told else {
            if now >= self.at {
                (self.told, self.due, self.newest) = (Some(Told::Nothing), true, true);
                (self.round_fruit, self.round_stirred) = (false, false);
            }
            return None;
        };
        if self.due {
            return None;
        }
        if self.stirred && !self.fruit {
            if !self.newest || self.resume == Told::Nothing {
                self.resume = told;
                return Some(self.rest(now));
            }
            self.told = Some(self.resume.further(told));
        }
        (self.due, self.newest) = (true, false);
        None
    }

    /// Behind which trips a page is due.
    pub fn take_due(&mut self) -> Option<Told> {
        if std::mem::take(&mut self.due) { self.told } else { None }
    }

    /// A page was told, up to here.
    pub fn page_told(&mut self, to: Told) {
        self.told = Some(to);
        (self.fruit, self.stirred) = (false, false);
    }

    /// There is no further page. Returns until when to be quiet.
    pub fn all_told(&mut self, now: Instant) -> Instant {
        self.resume = Told::Nothing;
        self.rest(now)
    }

    fn rest(&mut self, now: Instant) -> Instant {
        let most = if self.round_stirred { PAUSE_STIRRED_MAX } else { PAUSE_MAX };
        self.pause = if self.round_fruit { PAUSE_MIN } else { (self.pause * 2).min(most) };
        (self.told, self.at) = (None, now + self.pause);
        self.at
    }
}

/// Between two rounds, when something came of the first.
pub(super) const PAUSE_MIN: Duration = Duration::from_secs(10);
/// The same, when nothing came of many in a row.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(3_600);
/// The same, while trips move.
pub(super) const PAUSE_STIRRED_MAX: Duration = Duration::from_secs(600);
/// Trips that have moved; the oldest is forgotten, and counts as unmoved.
const MOVED_MAX: usize = 1_024;
