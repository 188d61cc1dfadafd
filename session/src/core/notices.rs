//! PATH_STATUS: what one side notices about a path, and the other should know.
//!
//! A notice goes out on all paths, the one that it is about included, so that it comes while any of
//! them lives. Its serial tells the peer which copies it has heard; an older notice about the same
//! path that comes late is passed over.

use std::time::Instant;

use polyrail_model::PathId;

use super::Session;
use crate::limits::NOTICES_MAX;
use crate::wire::{Frame, Notice, Said, encode};
use crate::{Event, PathReport, Role, TunnelKey};

impl Session {
    /// This side has noticed something about a path.
    pub fn report(&mut self, tunnel: TunnelKey, report: PathReport) {
        if let Some(path) = self.slot_of(tunnel).and_then(|slot| self.paths[slot].as_ref()) {
            let said = match report {
                PathReport::Stalled => Said::Stalled,
                PathReport::Policed { rate } => Said::Policed { rate },
            };
            self.notice(path.id, said);
        }
    }

    /// The paths of this carrier are used only when no other is left, or like any other.
    pub fn set_backup(&mut self, carrier: &str, backup: bool) {
        for slot in 0..self.paths.len() {
            let Some(path) = &mut self.paths[slot] else { continue };
            if path.carrier == carrier && path.backup != backup {
                path.backup = backup;
                let id = path.id;
                self.refresh(slot);
                self.tell_backup(id, backup);
            }
        }
    }

    /// The peer is to use this path only when no other is left, or like any other.
    pub fn tell_backup(&mut self, path: PathId, backup: bool) {
        self.notice(path, Said::Backup { backup });
    }

    pub(super) fn notice(&mut self, path: PathId, said: Said) {
        if self.notices.len() >= NOTICES_MAX {
            self.notices.pop_front();
        }
        self.notices.push_back(Notice { path, serial: self.next_notice, said });
        self.next_notice += 1;
    }

    /// Appends the notices that are due to what goes out on all paths.
    pub(super) fn take_notices(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for notice in std::mem::take(&mut self.notices) {
            encode(&Frame::PathStatus(notice), &mut bytes);
        }
        bytes
    }

    /// The peer has noticed something.
    pub(super) fn on_notice(&mut self, now: Instant, notice: Notice) {
        let of_path = |path: &Option<crate::path::Path>| {
            path.as_ref().is_some_and(|path| path.id == notice.path)
        };
        let Some(slot) = self.paths.iter().position(of_path) else { return };
        let Some(path) = &mut self.paths[slot] else { return };
        let noticed = &mut path.noticed[usize::from(matches!(notice.said, Said::Backup { .. }))];
        if notice.serial <= *noticed {
            return;
        }
        *noticed = notice.serial;
        let tunnel = path.tunnel;
        let report = match notice.said {
            Said::Stalled => PathReport::Stalled,
            Said::Policed { rate } => PathReport::Policed { rate },
            Said::Backup { backup } => {
                path.backup = backup;
                return self.refresh(slot);
            }
        };
        tracing::debug!(path = notice.path.0, ?report, "the peer reports on a path");
        self.events.push_back(Event::PathReport { tunnel, report });
        // A PING shows whether this side hears it still, and lets its transport notice.
        if let (Role::Gateway, Some(path)) = (self.role, &mut self.paths[slot]) {
            path.ping_soon(now);
        }
    }
}
