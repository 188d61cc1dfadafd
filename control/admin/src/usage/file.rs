//! The file of the accounts: JSON, replaced as a whole.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use super::account::Account;

/// The accounts in a file. A missing one has none. A damaged one is renamed to `NAME.damaged`, and
/// counting starts over.
pub(super) fn read(path: &Path) -> BTreeMap<String, Account> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return BTreeMap::new(),
        Err(error) => {
            let path = path.display();
            tracing::error!(%path, %error, "cannot read the carriers' used data: caps start at 0");
            return BTreeMap::new();
        }
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        let damaged = with_suffix(path, ".damaged");
        let renamed = fs::rename(path, &damaged);
        let (path, kept) = (path.display(), renamed.is_ok());
        tracing::error!(
            %path, %error, kept,
            "the file of the carriers' used data is damaged: caps start at 0"
        );
        BTreeMap::new()
    })
}

/// Replaces the file. A crash leaves the old one or the new one.
pub(super) fn write(path: &Path, accounts: &BTreeMap<String, Account>) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(accounts)?;
    let new = with_suffix(path, ".new");
    let mut file = File::create(&new)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&new, path)
}

fn with_suffix(path: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
