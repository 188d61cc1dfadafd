//! A running emulator between two fresh namespaces.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use polyrail_emulator::control::Client;
use polyrail_emulator::namespace::{Namespace, die_with_parent};
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
        let mut command = Command::new(env!("CARGO_BIN_EXE_polyrail-emulator"));
        die_with_parent(&mut command);
        let mut child = command
            .args(["--log-level", "warn", "run"])
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

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        super::wait_at_most(&mut self.child, Duration::from_secs(5))
    }

    /// Ends it in an orderly way; returns the lines it printed since the ready line.
    pub fn stop(mut self) -> Vec<Value> {
        kill(self.pid(), Signal::SIGTERM).unwrap();
        let status = self.wait();
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

/// Round trips of small datagrams through an echo at `address`, in order; lost ones are `None`.
pub struct Pinger {
    socket: UdpSocket,
    serial: u32,
}

impl Pinger {
    pub fn new(rail: &Rail, near: &str, far: &str) -> Self {
        let echo = rail.far.run(|| UdpSocket::bind(far)).unwrap().unwrap();
        let socket = rail.near.run(|| UdpSocket::bind(near)).unwrap().unwrap();
        socket.connect(echo.local_addr().unwrap()).unwrap();
        // The echo ends when its socket stays silent for as long as no test does.
        echo.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = echo.recv_from(&mut buffer) {
                let _ = echo.send_to(&buffer[..length], from);
            }
        });
        Self { socket, serial: 0 }
    }

    /// One round trip, waited for so long.
    pub fn ping(&mut self, patience: Duration) -> Option<Duration> {
        self.serial += 1;
        let start = Instant::now();
        self.socket.send(&self.serial.to_be_bytes()).unwrap();
        let end = start + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.socket.set_read_timeout(Some(left)).unwrap();
            let mut answer = [0; 16];
            if let Ok(4) = self.socket.recv(&mut answer)
                && answer[..4] == self.serial.to_be_bytes()
            {
                return Some(start.elapsed());
            }
        }
    }
}
