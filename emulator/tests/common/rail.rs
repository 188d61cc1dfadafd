//! A running emulator between two fresh namespaces.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use polyrail_emulator::control::Client;
use polyrail_emulator::namespace::Namespace;
use serde_json::Value;

/// Kills the emulator when it goes out of scope.
pub struct Rail {
    pub near: Namespace,
    pub far: Namespace,
    pub ready: Value,
    child: Child,
    out: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
}

impl Rail {
    /// Runs the scenario with these additional flags and waits for its ready line.
    pub fn start(scenario: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("scenario.toml");
        std::fs::write(&file, scenario).unwrap();
        let (near, far) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let here = Namespace::current().unwrap();
        let mut child = here
            .command(env!("CARGO_BIN_EXE_polyrail-emulator"))
            .arg("run")
            .arg(&file)
            .arg("--near")
            .arg(near.path())
            .arg("--far")
            .arg(far.path())
            .arg("--control")
            .arg(folder.path().join("control"))
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line)
            .unwrap_or_else(|e| panic!("no ready line but {line:?} ({e})"));
        assert_eq!(ready["ready"], true);
        Self { near, far, ready, child, out, folder }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("control")
    }

    pub fn control(&self) -> Client {
        Client::connect(self.socket()).unwrap()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Ends it in an orderly way; returns the lines it printed since the ready line.
    pub fn stop(mut self) -> Vec<Value> {
        kill(self.pid(), Signal::SIGTERM).unwrap();
        let status = super::wait_at_most(&mut self.child, Duration::from_secs(5));
        assert!(status.success(), "{status}");
        let lines = std::io::Read::by_ref(&mut self.out).lines().map(|line| line.unwrap());
        lines.map(|line| serde_json::from_str(&line).unwrap()).collect()
    }
}

impl Drop for Rail {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
