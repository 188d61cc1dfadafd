//! An nftables table that the kernel removes when this process ends.
//!
//! The kernel removes a table with the flag `owner` when the netlink socket that created it closes
//! (Linux 5.12). The socket belongs to an `nft` in interactive mode that reads from our pipe: when
//! this process ends or is killed, the pipe closes, `nft` exits, and the kernel removes the rules.
//! Only this `nft` can change the table, so changes use the pipe, too.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::InterceptError;
use super::system;

/// The `nft` process that owns the table.
#[derive(Debug)]
pub(super) struct OwnedTable {
    nft: Child,
}

impl OwnedTable {
    /// Creates the table from a ruleset, which must have `flags owner`.
    pub(super) fn start(ruleset: &str) -> Result<Self, InterceptError> {
        if system::table_is_owned() {
            return Err(InterceptError::Held);
        }
        let nft = Command::new("nft")
            .arg("-i")
            .env("LC_ALL", "C")
            // Interactive mode would write its history there.
            .env("HOME", "/nonexistent")
            // Keeps Ctrl-C from the child: the closed pipe ends it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| InterceptError::Run { program: "nft".to_owned(), source })?;
        let mut table = Self { nft };
        match table.run(&one_line(ruleset), system::table_is_owned) {
            Ok(()) => Ok(table),
            Err(_) => Err(table.complaint()),
        }
    }

    /// Runs one line and waits until the kernel shows its effect.
    pub(super) fn run(
        &mut self,
        line: &str,
        took_effect: impl Fn() -> bool,
    ) -> Result<(), InterceptError> {
        let failed = |source| InterceptError::Run { program: "nft -i".to_owned(), source };
        if let Some(stdin) = &mut self.nft.stdin {
            writeln!(stdin, "{line}").map_err(failed)?;
        }
        let deadline = Instant::now() + EFFECT_WAIT;
        while !took_effect() {
            let message = match self.nft.try_wait().map_err(failed)? {
                Some(status) => format!("it ended with {status}, and the rules with it"),
                None if Instant::now() < deadline => {
                    thread::sleep(POLL);
                    continue;
                }
                None => "the change had no effect".to_owned(),
            };
            return Err(InterceptError::Refused { command: "nft -i".to_owned(), message });
        }
        Ok(())
    }

    /// Whether nft is still running, and so the table exists.
    pub(super) fn lives(&mut self) -> bool {
        self.nft.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Ends nft and returns its standard error.
    fn complaint(&mut self) -> InterceptError {
        self.end();
        let mut message = String::new();
        if let Some(stderr) = &mut self.nft.stderr {
            // Best effort.
            let _ = stderr.take(MESSAGE_MAX).read_to_string(&mut message);
        }
        system::nft_refusal(&message)
    }

    fn end(&mut self) {
        self.nft.stdin = None;
        // It may have exited already.
        let _ = self.nft.kill();
        let _ = self.nft.wait();
    }
}

impl Drop for OwnedTable {
    fn drop(&mut self) {
        self.end();
    }
}

/// Interactive mode takes a transaction as one line.
fn one_line(ruleset: &str) -> String {
    let mut line = String::with_capacity(ruleset.len());
    for statement in ruleset.lines().map(|text| text.trim().trim_end_matches(';')) {
        line.push_str(statement);
        line.push_str(if statement.ends_with('{') { " " } else { "; " });
    }
    line
}

/// Timeout of a change; it usually takes about ten milliseconds.
const EFFECT_WAIT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(5);
/// The maximum size of the error text that is read, in bytes.
const MESSAGE_MAX: u64 = 16 * 1024;
