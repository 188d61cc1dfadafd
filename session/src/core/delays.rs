//! One-way delays: echoes come in, views of the paths are filled.

use std::time::{Duration, Instant};

use super::Session;
use crate::delay::Common;
use crate::path::Path;
use crate::wire::Echo;

impl Session {
    /// An arrival that the peer echoes; returns the slot of its path. Paths that are gone are
    /// passed over.
    pub(super) fn hear_echo(&mut self, now: Instant, echo: Echo) -> Option<usize> {
        let Echo { path: id, sent_us, received_us } = echo;
        let of_path = |path: &Option<Path>| path.as_ref().is_some_and(|path| path.id == id);
        let slot = self.paths.iter().position(of_path)?;
        let path = self.paths[slot].as_mut()?;
        let sent_at = self.epoch.checked_add(Duration::from_micros(sent_us))?;
        let signed = |micros: u64| i64::try_from(micros).unwrap_or(i64::MAX);
        path.delay.sample(now, sent_at, signed(received_us).saturating_sub(signed(sent_us)));
        Some(slot)
    }

    /// Brings the delays of all views up to date: they age, and each depends on the others. So do
    /// the rates age.
    pub(super) fn refresh_delays(&mut self, now: Instant) {
        let rtt_min = self.paths.iter().flatten().map(Path::rtt_min).min().unwrap_or_default();
        let delays = self.paths.iter().flatten().map(|path| &path.delay);
        let common = Common::of(now, rtt_min, delays);
        for (path, view) in self.paths.iter_mut().zip(&mut self.views) {
            let Some(path) = path else { continue };
            path.relative = common.as_ref().and_then(|common| common.relative(&path.delay));
            path.show_delay(view);
            view.rate_age = path.rate.age(now);
            view.capacity = path.capacity.now(now);
        }
    }
}
