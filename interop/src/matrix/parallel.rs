//! Rows that run in parallel: they mostly wait.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{RowResult, print_row};

/// Runs rows with `run`, `together` at a time, and prints each when it ends. The folder of a row's
/// logs is `logs` and the row's number.
pub(super) fn run_each<T: Sync>(
    rows: &[T],
    together: usize,
    logs: Option<&Path>,
    run: impl Fn(&T, Option<&Path>) -> RowResult + Sync,
) -> Vec<RowResult> {
    let queue = Mutex::new(rows.iter().enumerate());
    let outcomes = Mutex::new(Vec::new());
    let worker = || loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((number, row)) = next else { return };
        let logs = logs.map(|folder| PathBuf::from(format!("{}{number}", folder.display())));
        let outcome = run(row, logs.as_deref());
        print_row(&outcome);
        outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
    };
    std::thread::scope(|scope| (0..together).for_each(|_| drop(scope.spawn(worker))));
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
}
