//! Imports of LinkDB: a file has all of its effect or none, and an export of the result can be
//! imported.

use polyrail_predictor::exchange::{Coarsening, Format, export, import};
use polyrail_predictor::store::{Limits, Store};

use crate::input::Input;

/// Imports the bytes behind the first as CSV or NDJSON.
pub fn linkdb_import(data: &[u8]) {
    let mut input = Input(data);
    let format = if input.flag() { Format::Csv } else { Format::Ndjson };
    let limits = Limits { events_max: ENTRIES_MAX, logs_max: LOGS_MAX };
    let mut store = database(limits);
    let before = exported(&store);
    match import(&mut store, format, input.rest(), NOW_MS) {
        Err(_) => assert_eq!(exported(&store), before, "a refused file has changed the database"),
        Ok(_) => {
            let logs = store.logs().count();
            let stats = store.stats().expect("a readable database");
            assert!(stats.entries <= ENTRIES_MAX && logs <= LOGS_MAX, "{stats:?}");
            let after = exported(&store);
            let mut copy = database(Limits::default());
            let copied = import(&mut copy, Format::Ndjson, &after[..], NOW_MS);
            assert!(copied.is_ok(), "{copied:?}: {}", String::from_utf8_lossy(&after));
        }
    }
}

fn database(limits: Limits) -> Store {
    let mut store = Store::in_memory(limits).expect("a database");
    store.set_own_name("cloud").expect("a name");
    store
}

fn exported(store: &Store) -> Vec<u8> {
    let mut bytes = Vec::new();
    export(store, Format::Ndjson, Coarsening(0), &mut bytes).expect("a readable database");
    export(store, Format::Csv, Coarsening(100), std::io::sink()).expect("a readable database");
    bytes
}

const ENTRIES_MAX: u64 = 100;
const LOGS_MAX: usize = 12;
const NOW_MS: u64 = 1_790_000_000_000;
