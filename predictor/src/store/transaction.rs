//! Transactions, and how far each trip is known, in memory as it was committed.

use std::collections::BTreeMap;

use polyrail_model::TripId;
use redb::{ReadTransaction, ReadableDatabase, ReadableTable};

use super::Store;
use super::batch::Batch;
use super::error::{Fault, StoreError};
use super::tables::ORDER;
use crate::sync::KnownTrips;

impl Store {
    /// Runs one transaction. The outer error is the database's, the inner one the caller's; after
    /// either nothing was written.
    pub(crate) fn write<T, E: From<StoreError>>(
        &mut self,
        work: impl FnOnce(&mut Batch<'_>) -> Result<Result<T, E>, Fault>,
    ) -> Result<T, E> {
        let mut changes = BTreeMap::new();
        let transaction = || {
            let writing = self.database.begin_write()?;
            let result = {
                let mut batch = Batch::begin(&writing, self.limits)?;
                let result = work(&mut batch)?;
                if result.is_ok() {
                    changes = batch.finish()?;
                }
                result
            };
            if result.is_ok() {
                writing.commit()?;
            } else {
                writing.abort()?;
            }
            Ok(result)
        };
        let result = transaction().map_err(|fault: Fault| fault.at(&self.path))?;
        for (trip, next) in changes {
            self.known.set(trip, next);
        }
        result
    }

    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&ReadTransaction) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        let transaction = || work(&self.database.begin_read()?);
        transaction().map_err(|fault: Fault| fault.at(&self.path))
    }

    pub(super) fn read_known(&self) -> Result<KnownTrips, StoreError> {
        self.read(|reading| {
            let mut known = KnownTrips::default();
            for row in reading.open_table(ORDER)?.iter()? {
                let (trip, next) = row?.1.value();
                known.set(TripId(trip), Some(next));
            }
            Ok(known)
        })
    }
}
