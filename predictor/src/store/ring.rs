//! A bounded table that evicts the row written longest ago.

use redb::{ReadOnlyTable, ReadableTable, ReadableTableMetadata, Table};

use super::error::StoreError;

/// Keys and values of these tables.
pub(super) type Bytes = &'static [u8];

/// A key and a value.
pub(super) type Row = (Vec<u8>, Vec<u8>);

/// A bounded table and the order in which its rows were written.
pub(super) struct Ring<'t> {
    /// Key to the number of the write (eight bytes, see [`split`]) and the value.
    pub(super) rows: Table<'t, Bytes, Bytes>,
    /// Number of the write to key.
    pub(super) order: Table<'t, u64, Bytes>,
    pub(super) max: u64,
}

impl Ring<'_> {
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        get(&self.rows, key)
    }

    /// Writes a row as the newest; returns the replaced and the evicted values.
    pub(super) fn put(
        &mut self,
        key: &[u8],
        written: u64,
        value: &[u8],
    ) -> Result<Vec<Vec<u8>>, StoreError> {
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

/// The value of a key.
pub(super) fn get(
    rows: &impl ReadableTable<Bytes, Bytes>,
    key: &[u8],
) -> Result<Option<Vec<u8>>, StoreError> {
    let Some(row) = rows.get(key)? else { return Ok(None) };
    Ok(Some(split(row.value())?.1.to_vec()))
}

/// All keys and values, the row written longest ago first.
pub(super) fn by_age(rows: &ReadOnlyTable<Bytes, Bytes>) -> Result<Vec<Row>, StoreError> {
    let mut found = Vec::new();
    for row in rows.iter()? {
        let (key, row) = row?;
        let (written, value) = split(row.value())?;
        found.push((written, key.value().to_vec(), value.to_vec()));
    }
    found.sort_unstable_by_key(|(written, ..)| *written);
    Ok(found.into_iter().map(|(_, key, value)| (key, value)).collect())
}

/// The number of a row's write, and its value.
pub(super) fn split(row: &[u8]) -> Result<(u64, &[u8]), StoreError> {
    match row.split_first_chunk() {
        Some((written, value)) => Ok((u64::from_be_bytes(*written), value)),
        None => Err(StoreError::damaged("a row is cut short")),
    }
}
