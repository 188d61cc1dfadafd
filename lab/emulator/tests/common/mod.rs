//! What the integration tests share: the skip rule and children that never outlive their test.

#![allow(dead_code)]

pub mod rail;

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// True when the test must not run because it is not root and may be skipped.
///
/// # Panics
/// Not root, and `POLYRAIL_ALLOW_SKIP` does not list `name`.
pub fn skipped_without_root(name: &str) -> bool {
    if nix::unistd::geteuid().is_root() {
        return false;
    }
    skip_or_fail(name, "network namespaces need root; run the tests as root")
}

/// Prints the skip when it is allowed.
///
/// # Panics
/// `POLYRAIL_ALLOW_SKIP` does not list `name`.
pub fn skip_or_fail(name: &str, reason: &str) -> bool {
    let allowed = std::env::var("POLYRAIL_ALLOW_SKIP").unwrap_or_default();
    assert!(
        allowed.split([',', ' ']).any(|word| word == name),
        "{reason} (or let it be skipped with POLYRAIL_ALLOW_SKIP={name})"
    );
    println!("SKIP {name}: {reason}");
    true
}

/// Waits for the child's end, and kills it when the time is over.
///
/// # Panics
/// The time is over.
pub fn wait_at_most(child: &mut Child, limit: Duration) -> ExitStatus {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() >= end {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("process {} still ran after {limit:?}; it was killed", child.id());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
