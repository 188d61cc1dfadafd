//! Transactions of a store.

use redb::{ReadTransaction, ReadableDatabase};

use super::Store;
use super::batch::Batch;
use super::error::StoreError;

impl Store {
    /// Runs one durable transaction; after an error nothing was written.
    pub(crate) fn write<T, E: From<StoreError>>(
        &mut self,
        work: impl FnOnce(&mut Batch<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let writing = self.database.begin_write().map_err(StoreError::from)?;
        let mut batch = Batch::begin(&writing, self.limits)?;
        let result = work(&mut batch)?;
        let changes = batch.finish()?;
        writing.commit().map_err(StoreError::from)?;
        for (trip, next) in changes {
            self.known.set(trip, next);
        }
        Ok(result)
    }

    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&ReadTransaction) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        work(&self.database.begin_read()?)
    }
}
