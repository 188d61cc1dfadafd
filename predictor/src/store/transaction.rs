//! How a store reads and writes: one transaction at a time, with the database opened again after an
//! error, and what is known of trips kept in memory as it was committed.

use std::collections::BTreeMap;

use polyrail_model::TripId;
use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable};

use super::Store;
use super::batch::Batch;
use super::error::{Fault, StoreError};
use super::file::{Source, guarded};
use super::tables::ORDER;
use crate::sync::KnownTrips;

impl Store {
    /// One transaction. The outer error is the database's, the inner one the caller's; after either
    /// nothing was written.
    pub(crate) fn write<T, E: From<StoreError>>(
        &mut self,
        work: impl FnOnce(&mut Batch<'_>) -> Result<Result<T, E>, Fault>,
    ) -> Result<T, E> {
        self.reopen_if_broken()?;
        let mut changes = BTreeMap::new();
        let result = guarded(self.source.path(), || {
            let database = self.database()?;
            let writing = database.begin_write()?;
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
        });
        let result = self.noted(result)?;
        for (trip, next) in changes {
            self.known.set(trip, next);
        }
        result
    }

    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&ReadTransaction) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        let result = guarded(self.source.path(), || work(&self.database()?.begin_read()?));
        self.noted(result)
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

    pub(super) fn if_open<T>(&self, value: T) -> Result<T, StoreError> {
        match self.database() {
            Ok(_) => Ok(value),
            Err(fault) => Err(fault.at(self.source.path())),
        }
    }

    pub(super) fn database(&self) -> Result<&Database, Fault> {
        let open = self.database.as_ref().filter(|_| !self.broken.get());
        open.ok_or_else(|| StoreError::Closed { path: self.source.path().to_owned() }.into())
    }

    /// After an error of the disk redb wants to be opened again.
    pub(super) fn noted<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        let unusable = !matches!(
            result,
            Ok(_) | Err(StoreError::TrackTooLarge { .. } | StoreError::Refused(_))
        );
        if unusable && !matches!(self.source, Source::Memory) {
            self.broken.set(true);
        }
        result
    }

    pub(super) fn reopen_if_broken(&mut self) -> Result<(), StoreError> {
        if self.broken.get() {
            let old = self.database.take();
            guarded(self.source.path(), || {
                drop(old);
                Ok(())
            })?;
            self.database = Some(self.source.open()?);
            self.broken.set(false);
            // What failed may have been done nevertheless.
            self.known = self.read_known()?;
        }
        Ok(())
    }
}
