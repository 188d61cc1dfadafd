//! Reads the files of keys, certificates and revocation lists, none larger than [`FILE_MAX`].

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use x509_parser::pem::Pem;

use crate::IdentityError;

/// Refuses a private key file that group or others can read, write or execute.
///
/// # Errors
/// The file is not a regular file, cannot be examined, or its mode is too permissive; the message
/// contains the command that corrects it.
pub fn check_key_file(path: &Path) -> Result<(), IdentityError> {
    let metadata = fs::metadata(path).map_err(|e| IdentityError::file("read the key", path, e))?;
    if !metadata.is_file() {
        return Err(IdentityError::content(path, "not a regular file"));
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(IdentityError::KeyPermissions { path: path.to_owned(), mode });
    }
    Ok(())
}

/// SHA-256 over a file.
///
/// # Errors
/// The file cannot be read or is larger than 16 MiB.
pub fn digest(path: &Path) -> Result<[u8; 32], IdentityError> {
    let bytes = read("read", path)?;
    let mut digest = [0; 32];
    digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, &bytes).as_ref());
    Ok(digest)
}

/// The bytes of a file; `action` describes the attempt in the error.
pub(crate) fn read(action: &'static str, path: &Path) -> Result<Vec<u8>, IdentityError> {
    let failed = |error| IdentityError::file(action, path, error);
    let mut bytes = Vec::new();
    let opened = File::open(path).map_err(failed)?;
    opened.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(IdentityError::content(path, "over 16 MiB"));
    }
    Ok(bytes)
}

/// The text of a private key file whose permissions are right.
pub(crate) fn read_key(path: &Path) -> Result<Vec<u8>, IdentityError> {
    check_key_file(path)?;
    read("read the key", path)
}

/// All blocks of a PEM file, each parsed from its DER; at least one, and all with the same label.
pub(crate) fn read_pem<T>(
    path: &Path,
    what: &'static str,
    label: &str,
    parse: impl Fn(&[u8]) -> Result<T, String>,
) -> Result<Vec<T>, IdentityError> {
    let content = |reason: String| IdentityError::content(path, reason);
    let bytes = read("read", path)?;
    let mut found = Vec::new();
    for block in Pem::iter_from_buffer(&bytes) {
        let block = block.map_err(|error| content(format!("bad PEM: {error}")))?;
        if block.label != label {
            return Err(content(format!("a {} instead of a {what} ({label})", block.label)));
        }
        found.push(parse(&block.contents).map_err(content)?);
    }
    if found.is_empty() {
        return Err(content(format!("there is no {what} ({label}) in it")));
    }
    Ok(found)
}

/// The largest file that is read, in bytes: a revocation list of some 400,000 certificates.
const FILE_MAX: u64 = 16 * 1024 * 1024;
