//! The state that a rule keeps for each path.

use polyrail_model::PathId;

use crate::PATHS_MAX;

/// One value per path. Beyond [`PATHS_MAX`] paths it forgets the oldest entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerPath<T> {
    /// The latest is last.
    entries: Vec<(PathId, T)>,
}

impl<T: Default> PerPath<T> {
    /// The value of this path, or a default.
    pub fn of(&mut self, path: PathId) -> &mut T {
        let place = self.entries.iter().position(|(id, _)| *id == path);
        let place = place.unwrap_or_else(|| {
            if self.entries.len() >= PATHS_MAX {
                self.entries.remove(0);
            }
            self.entries.push((path, T::default()));
            self.entries.len() - 1
        });
        &mut self.entries[place].1
    }

    /// The value of this path, if it has one.
    pub fn get(&self, path: PathId) -> Option<&T> {
        self.entries.iter().find(|(id, _)| *id == path).map(|(_, value)| value)
    }

    /// Forgets a path.
    pub fn forget(&mut self, path: PathId) {
        self.entries.retain(|(id, _)| *id != path);
    }

    /// All paths with their values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (PathId, &mut T)> {
        self.entries.iter_mut().map(|(id, value)| (*id, value))
    }
}
