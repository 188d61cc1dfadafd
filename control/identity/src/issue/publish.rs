//! Writes files that appear whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use crate::IdentityError;

/// A file to be written.
pub(super) struct Draft<'a> {
    pub(super) name: &'a str,
    pub(super) text: &'a str,
    pub(super) mode: u32,
}

/// Creates a folder that only its owner can enter, unless it exists.
pub(super) fn make_folder(dir: &Path) -> Result<(), IdentityError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| IdentityError::file("make the folder", dir, error))
}

/// Refuses if one of the files exists, unless `force`.
pub(super) fn refuse_existing(
    dir: &Path,
    names: &[&str],
    force: bool,
) -> Result<(), IdentityError> {
    let exists = |name: &&&str| fs::symlink_metadata(dir.join(name)).is_ok();
    match names.iter().find(exists) {
        Some(name) if !force => Err(IdentityError::Exists { path: dir.join(name) }),
        _ => Ok(()),
    }
}

/// Writes a group of files: all of them under temporary names first, so that a full disk replaces
/// none. A crash between the renames leaves a key without its certificate, which the daemons
/// reject; issuing again with `force` repairs it.
pub(super) fn publish(dir: &Path, drafts: &[Draft<'_>]) -> Result<(), IdentityError> {
    let failed = |error| IdentityError::file("write the files in", dir, error);
    let temporary = |draft: &Draft<'_>| dir.join(format!(".{}.{}", draft.name, std::process::id()));
    let write = || {
        drafts.iter().try_for_each(|draft| write_new(&temporary(draft), draft))?;
        drafts.iter().try_for_each(|d| fs::rename(temporary(d), dir.join(d.name)))?;
        File::open(if dir.as_os_str().is_empty() { Path::new(".") } else { dir })?.sync_all()
    };
    let written = write();
    if written.is_err() {
        for draft in drafts {
            let _ = fs::remove_file(temporary(draft));
        }
    }
    written.map_err(failed)
}

fn write_new(path: &Path, draft: &Draft<'_>) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(draft.mode).open(path)?;
    file.write_all(draft.text.as_bytes())?;
    file.sync_all()
}
