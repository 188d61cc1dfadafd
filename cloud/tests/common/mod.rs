//! A real cloud process, and a gateway of the test's own process.

#![allow(clippy::unwrap_used)] // also in the helpers
#![allow(dead_code)] // each test uses its part

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mio::{Events, Poll};
use polyrail_identity::{
    Authority, IdentityPaths, IssueRequest, Issued, NodeRole, SystemClock, TlsIdentity,
};
use polyrail_model::{Identity, InstanceId};
use polyrail_relay::{Label, Relay, RelayEvent, RelaySettings};
use polyrail_session::{Endpoint, Event, Settings, TunnelKey};
use polyrail_tunnel::{CarrierSpec, Tunnel, quic, tls};
use serde_json::Value;

/// The process; it ends with the test.
pub struct Cloud {
    pub process: Child,
    pub address: SocketAddr,
    pub config: PathBuf,
    log: PathBuf,
    socket: PathBuf,
}

impl Drop for Cloud {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const TLS: &str = "[tls]\ncertificate = \"c.crt\"\nkey = \"c.key\"\nauthority = \"ca.crt\"\n\
                   revocations = \"revoked.crl\"\n";

const PROGRAM: &str = env!("CARGO_BIN_EXE_polyrail-cloud");

impl Cloud {
    /// `top` stands at the top of the configuration, `tables` at its end.
    pub fn start(dir: &Path, top: &str, tables: &str) -> Self {
        Self::spawn(Command::new(PROGRAM), dir, top, tables)
    }

    /// The same, with at most this number of open files.
    pub fn start_within(open_files: u64, dir: &Path, top: &str, tables: &str) -> Self {
        let mut command = Command::new("prlimit");
        command.args([&format!("--nofile={open_files}:{open_files}"), "--", PROGRAM]);
        Self::spawn(command, dir, top, tables)
    }

    fn spawn(mut command: Command, dir: &Path, top: &str, tables: &str) -> Self {
        let address = free_address();
        let config = dir.join("cloud.toml");
        let (log, socket) = (dir.join("log"), dir.join("admin.sock"));
        fs::write(&config, Self::text(address, top, tables)).unwrap();
        let process = command
            .args(["--log-level", "debug", "--config"])
            .arg(&config)
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let cloud = Self { process, address, config, log, socket };
        cloud.until_logged("polyrail-cloud started");
        cloud
    }

    fn text(address: SocketAddr, top: &str, tables: &str) -> String {
        let admin = "[admin]\nsocket = \"admin.sock\"\n";
        // With several workers each has a part of the process's limits.
        format!("workers = 1\nlisten = [\"{address}\"]\n{top}\n{TLS}{admin}{tables}")
    }

    /// Writes another configuration; the process does not know of it yet.
    pub fn rewrite(&self, top: &str, tables: &str) {
        fs::write(&self.config, Self::text(self.address, top, tables)).unwrap();
    }

    /// The first line of the log that contains `text`.
    pub fn until_logged(&self, text: &str) -> String {
        let limit = Instant::now() + Duration::from_secs(20);
        loop {
            let log = self.log();
            if let Some(line) = log.lines().find(|line| line.contains(text)) {
                return line.to_owned();
            }
            assert!(Instant::now() < limit, "{text:?} is not in the log:\n{log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Asks the admin socket: the status code and the JSON.
    pub fn ask(&self, request: &str, body: &str) -> (u16, Value) {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let length = body.len();
        write!(
            stream,
            "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned())))
    }

    /// The events so far that are of this kind.
    pub fn events(&self, kind: &str) -> Vec<Value> {
        let (code, body) = self.ask("GET /v1/events?follow=false", "");
        assert_eq!(code, 200, "{body}");
        let text = match body {
            Value::String(text) => text,
            one => one.to_string(),
        };
        // The stream may come in chunks, whose lengths stand on lines of their own.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|event| event["event"] == kind).collect()
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib * 1024
    }
}

/// A port of the loopback that is free for TCP and UDP.
fn free_address() -> SocketAddr {
    loop {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        if UdpSocket::bind(address).is_ok() {
            return address;
        }
    }
}

/// A gateway with as many tunnels as the test wants.
pub struct Gateway {
    poll: Poll,
    pub relay: Relay,
    pub quic: quic::Client,
    pub tls: tls::Client,
    pub seen: Vec<RelayEvent>,
}

impl Gateway {
    pub fn new(identity: &TlsIdentity) -> Self {
        let poll = Poll::new().unwrap();
        let registry = poll.registry().try_clone().unwrap();
        let mut instance = [0; 16];
        static NEXT: AtomicU64 = AtomicU64::new(1);
        instance[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        let endpoint = Endpoint::gateway(Instant::now(), Settings::default(), InstanceId(instance));
        let relay = Relay::new(registry, endpoint, RelaySettings::default());
        let cloud = Identity::new("c").unwrap();
        let clock = Arc::new(SystemClock);
        let quic = quic::Client::new(identity.clone(), cloud.clone(), clock.clone()).unwrap();
        let tls = tls::Client::new(identity.clone(), cloud, clock).unwrap();
        Self { poll, relay, quic, tls, seen: Vec::new() }
    }

    /// With early data as soon as a ticket is there.
    pub fn connect_quic(&mut self, carrier: &str, cloud: SocketAddr) -> TunnelKey {
        let name = carrier.to_owned();
        let spec = CarrierSpec { name, early: true, ..CarrierSpec::default() };
        let tunnel = self.quic.connect(Instant::now(), &spec, cloud).unwrap();
        self.add(carrier, tunnel)
    }

    /// With early data as soon as a ticket is there.
    pub fn connect_tls(&mut self, carrier: &str, cloud: SocketAddr) -> TunnelKey {
        let name = carrier.to_owned();
        let spec = CarrierSpec { name, early: true, ..CarrierSpec::default() };
        let tunnel = self.tls.connect(Instant::now(), &spec, cloud).unwrap();
        self.add(carrier, tunnel)
    }

    fn add(&mut self, carrier: &str, tunnel: Box<dyn Tunnel>) -> TunnelKey {
        let label = Label { carrier: carrier.to_owned(), ..Label::default() };
        self.relay.add_tunnel(tunnel, label).unwrap()
    }

    /// Turns the loop once; what happened is in `seen`, too.
    /// Lets go what can be sent without an answer, and hears none.
    pub fn speak_first(&mut self) {
        self.relay.turn(Instant::now());
    }

    pub fn turn(&mut self) -> Vec<RelayEvent> {
        let mut events = Events::with_capacity(64);
        self.poll.poll(&mut events, Some(Duration::from_millis(1))).unwrap();
        let now = Instant::now();
        for event in &events {
            self.relay.on_event(now, event);
        }
        self.relay.turn(now);
        std::iter::from_fn(|| self.relay.poll_event()).collect()
    }

    pub fn until<T>(&mut self, what: &str, mut wanted: impl FnMut(RelayEvent) -> Option<T>) -> T {
        let limit = Instant::now() + Duration::from_secs(20);
        while Instant::now() < limit {
            for event in self.turn() {
                if let Some(found) = wanted(event) {
                    return found;
                }
            }
        }
        panic!("no {what}");
    }

    pub fn until_path(&mut self, tunnel: TunnelKey) {
        self.until("path", |event| match event {
            RelayEvent::Session(Event::PathUp { tunnel: up, .. }) if up == tunnel => Some(()),
            RelayEvent::TunnelClosed { tunnel: gone, reason, .. } if gone == tunnel => {
                panic!("the tunnel is gone: {reason}")
            }
            _ => None,
        });
    }
}

/// Creates identities of the cloud `c` and of the gateway `train-7`; returns their folder, their
/// authority and the gateway's.
pub fn identities() -> (tempfile::TempDir, Authority, (TlsIdentity, Issued)) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let authority = Authority::create(dir, "Test", false).unwrap();
    issue(&authority, dir, "c", NodeRole::Cloud);
    let gateway = issue(&authority, dir, "train-7", NodeRole::Gateway);
    (folder, authority, gateway)
}

/// Issues a certificate; gives the issued files, too.
pub fn issue(
    authority: &Authority,
    dir: &Path,
    name: &str,
    role: NodeRole,
) -> (TlsIdentity, Issued) {
    let name = Identity::new(name).unwrap();
    let request = IssueRequest { name, role, days: 397, out: dir.to_owned(), force: true };
    let issued = authority.issue(&request).unwrap();
    let paths = IdentityPaths {
        certificate: issued.certificate_file.clone(),
        key: issued.key_file.clone(),
        authority: dir.join("ca.crt"),
        revocations: None,
    };
    (TlsIdentity::load(&paths).unwrap(), issued)
}
