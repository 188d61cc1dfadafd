//! The scratch folder: a `tmpfs` that only this harness sees and that disappears with it.
//!
//! The calling thread moves to a private mount namespace and covers an existing, standard folder
//! (`/mnt`, `/media` or `/srv`) there. Only its later threads and children see these files. The
//! kernel frees them when the last of these processes ends.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Folders that every Debian has and that rarely contain a build tree.
const MOUNT_POINTS: [&str; 3] = ["/mnt", "/media", "/srv"];

/// Gives the calling thread, and its later threads and children, a private scratch folder.
pub fn private_folder(size: &str) -> Result<PathBuf> {
    unshare(CloneFlags::CLONE_NEWNS).context("a private mount namespace (needs root)")?;
    keep_mounts_private()?;
    let here = std::env::current_dir().context("current folder")?;
    let program = std::env::current_exe().context("own program")?;
    let usable = |point: &&str| {
        let point = Path::new(point);
        point.is_dir() && !here.starts_with(point) && !program.starts_with(point)
    };
    let point = MOUNT_POINTS
        .iter()
        .copied()
        .find(usable)
        .context("none of /mnt, /media, /srv is usable")?;
    mount_tmpfs(Path::new(point), size)?;
    Ok(PathBuf::from(point))
}

/// Mounts a `tmpfs` of at most `size` (in the format of mount(8), such as `64k`) at a folder.
pub fn mount_tmpfs(point: &Path, size: &str) -> Result<()> {
    let options = format!("size={size},mode=0755");
    mount(Some("tmpfs"), point, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
        .with_context(|| format!("tmpfs at {}", point.display()))
}

/// Prevents later mounts of this mount namespace from propagating to others.
pub fn keep_mounts_private() -> Result<()> {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .context("private mounts")
}
