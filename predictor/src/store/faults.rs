//! A disk in memory that fails at a chosen operation, and forgets what was not synchronised.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use rand::{Rng, RngExt};
use redb::StorageBackend;

/// Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// What a crash leaves.
    stable: Vec<u8>,
    /// What is read back.
    seen: Vec<u8>,
    /// What was not yet synchronised.
    pending: Vec<Change>,
    /// Changes and synchronisations until the disk fails.
    left: Option<u64>,
    /// How many there were.
    operations: u64,
    /// The next operation panics, as redb does where it finds a file damaged.
    panics: bool,
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Resize(usize),
}

impl Disk {
    pub(crate) fn with(bytes: Vec<u8>) -> Self {
        let state = State { stable: bytes.clone(), seen: bytes, ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Lets so many operations succeed, all after them fail; none: the disk is whole again.
    pub(crate) fn fail_after(&self, operations: Option<u64>) {
        self.state().left = operations;
    }

    pub(crate) fn panic_next(&self) {
        self.state().panics = true;
    }

    pub(crate) fn would_panic(&self) -> bool {
        self.state().panics
    }

    pub(crate) fn operations(&self) -> u64 {
        self.state().operations
    }

    pub(crate) fn failed(&self) -> bool {
        self.state().left == Some(0)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.state().stable.clone()
    }

    /// The disk after a loss of power: of what was not synchronised each change is there, or half
    /// there, or not, as chance has it.
    pub(crate) fn after_crash(&self, rng: &mut impl Rng) -> Self {
        let state = self.state();
        let mut bytes = state.stable.clone();
        for change in &state.pending {
            match (rng.random_range(0..3u8), change) {
                (0, Change::Write(at, data)) => {
                    let torn = rng.random_range(0..=data.len());
                    apply(&mut bytes, &Change::Write(*at, data[..torn].to_vec()));
                }
                (1, change) => apply(&mut bytes, change),
                _ => {}
            }
        }
        Self::with(bytes)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn panic_if_wanted(&self) {
        let panics = std::mem::take(&mut self.state().panics);
        assert!(!panics, "as the test wants it");
    }

    fn change(&self, change: Change) -> io::Result<()> {
        self.panic_if_wanted();
        let mut state = self.state();
        state.step()?;
        apply(&mut state.seen, &change);
        state.pending.push(change);
        Ok(())
    }
}

impl State {
    fn step(&mut self) -> io::Result<()> {
        match &mut self.left {
            Some(0) => return Err(io::ErrorKind::StorageFull.into()),
            Some(left) => *left -= 1,
            None => {}
        }
        self.operations += 1;
        Ok(())
    }
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Resize(length) => bytes.resize(*length, 0),
        Change::Write(at, data) => {
            let end = at + data.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*at..end].copy_from_slice(data);
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        let from = state.seen.get(offset as usize..).unwrap_or_default();
        let from = from.get(..out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(from);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.change(Change::Resize(length as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.panic_if_wanted();
        let mut state = self.state();
        state.step()?;
        let State { pending, stable, .. } = &mut *state;
        pending.drain(..).for_each(|change| apply(stable, &change));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Change::Write(offset as usize, data.to_vec()))
    }
}
