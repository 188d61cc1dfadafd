//! The privileges that the lab needs: root, or a user namespace in which it is root.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};

/// The reasons, separated by commas, for which tests may skip: `netns`.
pub const SKIP_VARIABLE: &str = "POLYRAIL_ALLOW_SKIP";

/// Whether this process may create network namespaces.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Continues as root, or restarts the program as root of a new user namespace.
///
/// # Errors
/// Neither is possible; the error names the remedy.
pub fn become_root() -> Result<()> {
    if is_root() {
        return Ok(());
    }
    std::fs::File::options().read(true).write(true).open("/dev/net/tun").context(
        "/dev/net/tun, which the emulated carriers need, is for root alone here: \
         run it as root or with sudo",
    )?;
    let probe = ["--user", "--map-root-user", "--net", "--mount"];
    let allowed = Command::new("unshare")
        .args(probe)
        .arg("true")
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !allowed {
        bail!(
            "network namespaces need root, and this kernel gives no user namespaces to others: \
             run it as root or with sudo"
        );
    }
    let failure = Command::new("unshare")
        .args(["--user", "--map-root-user", "--"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .exec();
    Err(anyhow!("unshare: {failure}"))
}

/// Whether a test that needs namespaces can run here; `false` if it may be skipped.
///
/// # Errors
/// The test cannot run, and skipping it is not allowed.
pub fn namespaces_or_skip(test: &str) -> Result<bool> {
    if is_root() {
        return Ok(true);
    }
    skip_or_fail("netns", &format!("{test} needs root for network namespaces"))?;
    Ok(false)
}

/// Prints that a test is skipped.
///
/// # Errors
/// Skipping is not allowed.
pub fn skip_or_fail(name: &str, reason: &str) -> Result<()> {
    let allowed = std::env::var(SKIP_VARIABLE).unwrap_or_default();
    if !allowed.split(',').any(|word| word.trim() == name) {
        bail!("{reason}; to skip it set {SKIP_VARIABLE}={name}");
    }
    println!("SKIP {name}: {reason}");
    Ok(())
}
