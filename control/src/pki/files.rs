//! Files that appear whole or not at all, and private keys that group and others cannot touch.
//!
//! A group of files (a key and its certificate) is first written to a hidden staging folder
//! beside its place, then the folder is renamed to `.STEM.ready`, then the files are moved out of
//! it. Before that rename nothing has happened; after it, a run that was cut short is completed
//! by the next one. So there is never a key that belongs to another certificate.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::PkiError;

/// One file of a group.
pub(super) struct Draft<'a> {
    pub(super) name: String,
    pub(super) text: &'a str,
    pub(super) mode: u32,
}

/// Refuses a private key file that group or others can read, write or execute.
///
/// # Errors
/// The file cannot be looked at, is not a regular file, or has too wide a mode; the message names
/// the remedy.
pub fn check_key_file(path: &Path) -> Result<(), PkiError> {
    let metadata = fs::metadata(path).map_err(|e| PkiError::file("read the key", path, e))?;
    if !metadata.is_file() {
        return Err(PkiError::content(path, "not a regular file"));
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(PkiError::KeyPermissions { path: path.to_owned(), mode });
    }
    Ok(())
}

/// Reads a private key file, having checked who may read it.
///
/// # Errors
/// As [`check_key_file`]; or the file holds no private key that this crate can sign with.
pub fn read_key(path: &Path) -> Result<rcgen::KeyPair, PkiError> {
    check_key_file(path)?;
    let text = read_text("read the key", path)?;
    rcgen::KeyPair::from_pem(&text)
        .map_err(|_| PkiError::content(path, "this is not a private key in PEM (PKCS #8)"))
}

/// The largest file of keys or certificates that is read, in bytes.
pub(super) const FILE_MAX: u64 = 16 * 1024 * 1024;

/// A file of at most [`FILE_MAX`] bytes.
pub(super) fn read(action: &'static str, path: &Path) -> Result<Vec<u8>, PkiError> {
    let refuse = |error| PkiError::file(action, path, error);
    let mut bytes = Vec::new();
    let opened = File::open(path).map_err(refuse)?;
    opened.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(refuse)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(PkiError::content(path, "over 16 MiB"));
    }
    Ok(bytes)
}

/// SHA-256 over a file of at most [`FILE_MAX`] bytes.
pub fn digest(path: &Path) -> Result<[u8; 32], PkiError> {
    let bytes = read("read", path)?;
    let mut digest = [0; 32];
    digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, &bytes).as_ref());
    Ok(digest)
}

/// A file of text.
pub(super) fn read_text(action: &'static str, path: &Path) -> Result<String, PkiError> {
    String::from_utf8(read(action, path)?).map_err(|_| PkiError::content(path, "this is not text"))
}

/// Makes a folder that only its owner enters, unless it is there.
pub(super) fn make_folder(dir: &Path) -> Result<(), PkiError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| PkiError::file("make the folder", dir, error))
}

/// Replaces one file: what stands there is the old text or the new one, never a part.
pub(super) fn replace(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    let refuse = |error| PkiError::file("write", path, error);
    let dir = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = dir.join(format!(".{name}.{}", std::process::id()));
    let written = write_new(&draft, text, mode).and_then(|()| fs::rename(&draft, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&draft);
        return Err(refuse(error));
    }
    sync_folder(dir).map_err(refuse)
}

/// Puts a group of files in place together.
pub(super) fn publish(
    dir: &Path,
    stem: &str,
    drafts: &[Draft<'_>],
    force: bool,
) -> Result<(), PkiError> {
    if complete(dir, stem)? {
        return Err(PkiError::Completed { dir: dir.to_owned(), stem: stem.to_owned() });
    }
    refuse_existing(dir, drafts.iter().map(|draft| draft.name.as_str()), force)?;
    let staging = dir.join(format!(".{stem}.staging"));
    let refuse = |error| PkiError::file("write", &staging, error);
    if let Err(error) = stage(dir, stem, &staging, drafts) {
        let _ = fs::remove_dir_all(&staging);
        return Err(refuse(error));
    }
    complete(dir, stem).map(|_| ())
}

/// Refuses to go on when one of the files is there already, unless `force`.
pub(super) fn refuse_existing<'a>(
    dir: &Path,
    mut names: impl Iterator<Item = &'a str>,
    force: bool,
) -> Result<(), PkiError> {
    let present = |name: &&str| fs::symlink_metadata(dir.join(name)).is_ok();
    match names.find(present) {
        Some(name) if !force => Err(PkiError::Exists { path: dir.join(name) }),
        _ => Ok(()),
    }
}

/// Moves a group that was written completely to its place; false when there is none.
pub(super) fn complete(dir: &Path, stem: &str) -> Result<bool, PkiError> {
    let ready = ready_folder(dir, stem);
    let refuse = |error| PkiError::file("move the files of", &ready, error);
    let entries = match fs::read_dir(&ready) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(refuse)?,
    };
    for entry in entries {
        let entry = entry.map_err(refuse)?;
        fs::rename(entry.path(), dir.join(entry.file_name())).map_err(refuse)?;
    }
    sync_folder(dir).and_then(|()| fs::remove_dir(&ready)).map_err(refuse)?;
    Ok(true)
}

/// Writes the group beside its place and, as the last step, declares it complete.
fn stage(dir: &Path, stem: &str, staging: &Path, drafts: &[Draft<'_>]) -> io::Result<()> {
    match fs::remove_dir_all(staging) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    DirBuilder::new().mode(0o700).create(staging)?;
    for draft in drafts {
        write_new(&staging.join(&draft.name), draft.text, draft.mode)?;
    }
    sync_folder(staging)?;
    fs::rename(staging, ready_folder(dir, stem))?;
    sync_folder(dir)
}

pub(super) fn ready_folder(dir: &Path, stem: &str) -> PathBuf {
    dir.join(format!(".{stem}.ready"))
}

fn write_new(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn sync_folder(dir: &Path) -> io::Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir)?.sync_all()
}
