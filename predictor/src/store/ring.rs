//! A table that holds so many rows: the one that was written longest ago falls out.

use redb::{ReadOnlyTable, ReadableTable, ReadableTableMetadata, Table};

use super::error::Fault;

/// Keys and values of all such tables.
pub(super) type Bytes = &'static [u8];

/// A bounded table and the order in which its rows were written.
pub(super) struct Ring<'t> {
    /// Key to when it was written (eight bytes, see [`split`]) and the value.
    pub(super) rows: Table<'t, Bytes, Bytes>,
    /// When a row was written, to its key; each has another number.
    pub(super) order: Table<'t, u64, Bytes>,
    pub(super) max: u64,
}

impl Ring<'_> {
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        let Some(row) = self.rows.get(key)? else { return Ok(None) };
        Ok(Some(split(row.value())?.1.to_vec()))
    }

    /// Counts a row as just written; nothing where there is none.
    pub(super) fn touch(&mut self, key: &[u8], written: u64) -> Result<(), Fault> {
        if let Some(value) = self.get(key)? {
            self.put(key, written, &value)?;
        }
        Ok(())
    }

    /// Writes a row as the newest; answers the values that are gone: the one that it replaces and
    /// those that fell out for it.
    pub(super) fn put(
        &mut self,
        key: &[u8],
        written: u64,
        value: &[u8],
    ) -> Result<Vec<Vec<u8>>, Fault> {
        let row = [&written.to_be_bytes()[..], value].concat();
        let mut gone = Vec::new();
        if let Some(before) = self.rows.insert(key, &row[..])? {
            let (written, value) = split(before.value())?;
            self.order.remove(written)?;
            gone.push(value.to_vec());
        }
        self.order.insert(written, key)?;
        while self.rows.len()? > self.max {
            let Some((_, oldest)) = self.order.pop_first()? else { break };
            if let Some(row) = self.rows.remove(oldest.value())? {
                gone.push(split(row.value())?.1.to_vec());
            }
        }
        Ok(gone)
    }
}

/// The value of a row in a table that is only read.
pub(super) fn get(
    rows: &ReadOnlyTable<Bytes, Bytes>,
    key: &[u8],
) -> Result<Option<Vec<u8>>, Fault> {
    let Some(row) = rows.get(key)? else { return Ok(None) };
    Ok(Some(split(row.value())?.1.to_vec()))
}

/// When a row was written, and its value.
pub(super) fn split(row: &[u8]) -> Result<(u64, &[u8]), Fault> {
    match row.split_first_chunk() {
        Some((written, value)) => Ok((u64::from_be_bytes(*written), value)),
        None => Err(Fault::Damaged("a row is cut short".to_owned())),
    }
}
