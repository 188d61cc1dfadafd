//! A running gateway without a cloud: its service manager, its reloads and its end.

#![allow(clippy::unwrap_used)] // also in the helpers

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use polyrail_identity::{Authority, IssueRequest, Issued, NodeRole};
use polyrail_model::Identity;

/// The process; it ends with the test.
struct Gateway {
    process: Child,
    manager: UnixDatagram,
    authority: Authority,
    folder: tempfile::TempDir,
    text: String,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const WATCHDOG: Duration = Duration::from_millis(300);
const TEXT: &str = r#"
mode = "auto"
[tls]
certificate = "g.crt"
key = "g.key"
authority = "ca.crt"
revocations = "revoked.crl"
[cloud]
name = "c"
addresses = ["127.0.0.1:9"]
[socks5]
listen = ["SOCKS"]
[admin]
socket = "admin.sock"
[linkdb]
path = "linkdb.redb"
[[carrier]]
name = "a"
source = "127.0.0.1"
congestion = "reno"
"#;

impl Gateway {
    fn start() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Self::start_at(&free.to_string())
    }

    /// With the SOCKS5 server at `socks`, and the socket `notify` as its service manager's.
    fn start_at(socks: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let authority = Authority::create(dir, "Test", false).unwrap();
        issue(&authority, dir, "g");
        let text = TEXT.replace("SOCKS", socks);
        fs::write(dir.join("gateway.toml"), &text).unwrap();
        let manager = UnixDatagram::bind(dir.join("notify")).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_polyrail-gateway"))
            .arg("--config")
            .arg(dir.join("gateway.toml"))
            .env("NOTIFY_SOCKET", dir.join("notify"))
            .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string())
            .stderr(File::create(dir.join("log")).unwrap())
            .spawn()
            .unwrap();
        let gateway = Self { process, manager, authority, folder, text };
        let limit = Instant::now() + Duration::from_secs(20);
        while !gateway.log().contains("polyrail-gateway started") {
            assert!(Instant::now() < limit, "it does not start:\n{}", gateway.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        gateway
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }

    /// The next message to the service manager.
    fn told(&self) -> String {
        let mut message = [0; 64];
        let length = self.manager.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..length]).into_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    /// Writes another configuration file.
    fn rewrite(&self, from: &str, to: &str) {
        assert!(self.text.contains(from), "{from:?} is not in the configuration");
        fs::write(self.path("gateway.toml"), self.text.replace(from, to)).unwrap();
    }

    /// The complete answer of the admin socket.
    fn ask(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(self.path("admin.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Reloads, which must succeed.
    fn reload(&self) -> String {
        let answer = self.ask("POST /v1/reload");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }
}

fn issue(authority: &Authority, dir: &Path, name: &str) -> Issued {
    let (name, role) = (Identity::new(name).unwrap(), NodeRole::Gateway);
    let out = dir.to_owned();
    authority.issue(&IssueRequest { name, role, days: 397, out, force: true }).unwrap()
}

#[test]
fn unavailable_congestion_control_causes_a_warning() {
    let gateway = Gateway::start();
    gateway.rewrite("\"reno\"", "\"warp\"");
    let answer = gateway.reload();
    assert!(answer.contains("\"key\":\"carrier.a.congestion\""), "{answer}");
    assert!(answer.contains("carrier.a.congestion: QUIC has no congestion control warp"));
    assert!(answer.contains("carrier.a.congestion: congestion control warp cannot be used"));
    assert!(answer.contains("modprobe tcp_warp"), "{answer}");

    // Only changed carriers cause warnings.
    gateway.rewrite("\"reno\"", "\"warp\"\nmetered = true");
    let answer = gateway.reload();
    assert!(answer.contains("metered") && !answer.contains("modprobe"), "{answer}");
    gateway.rewrite("\"reno\"", "\"warp\"\nmetered = true\nmode = \"quic\"");
    let answer = gateway.reload();
    assert!(answer.contains("QUIC has no") && !answer.contains("modprobe"), "{answer}");
    gateway.rewrite("\"reno\"", "\"cubic\"\nmode = \"quic\"");
    let answer = gateway.reload();
    assert!(answer.contains("\"warnings\":[]"), "{answer}");
    let two = "\"reno\"\n[[carrier]]\nname = \"b\"\nsource = \"127.0.0.2\"\ncongestion = \"weft\"";
    gateway.rewrite("\"reno\"", two);
    let answer = gateway.reload();
    assert!(answer.contains("carrier.b.congestion: QUIC has no"), "{answer}");
    assert!(answer.contains("modprobe tcp_weft"), "{answer}");
}

#[test]
fn service_manager_is_told_and_an_idle_gateway_stops_within_a_second() {
    let mut gateway = Gateway::start();
    assert_eq!(gateway.told(), "READY=1");
    let ready = Instant::now();
    assert_eq!([gateway.told(), gateway.told()], ["WATCHDOG=1", "WATCHDOG=1"]);
    assert!(ready.elapsed() < WATCHDOG * 2, "{:?}", ready.elapsed());
    let stopped = Instant::now();
    gateway.signal(Signal::SIGTERM);
    assert!(gateway.process.wait().unwrap().success());
    assert!(stopped.elapsed() < Duration::from_secs(1), "{:?}", stopped.elapsed());
    while gateway.told() != "STOPPING=1" {}
}

#[test]
fn panic_ends_the_gateway_with_its_reason_in_the_log() {
    if !cfg!(debug_assertions) {
        return;
    }
    let mut gateway = Gateway::start();
    gateway.signal(Signal::SIGUSR1);
    assert_eq!(gateway.process.wait().unwrap().code(), Some(101));
    let log = gateway.log();
    let line = log.lines().find(|line| line.contains("thread panicked")).unwrap();
    for part in ["ERROR", "thread=\"main\"", "daemon.rs", "requested by SIGUSR1"] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn gateway_waits_for_the_address_of_its_socks5_server() {
    let gateway = Gateway::start_at("192.0.2.77:1080");
    assert!(gateway.log().contains("waiting address=192.0.2.77:1080"), "{}", gateway.log());
    assert_eq!(gateway.told(), "READY=1");
}

#[test]
fn changed_telemetry_section_starts_and_stops_a_source() {
    let gateway = Gateway::start();
    fs::write(gateway.path("trip"), "").unwrap();
    for (section, runs) in [("[telemetry]\nreplay = \"trip\"\n[admin]", true), ("[admin]", false)] {
        gateway.rewrite("[admin]", section);
        assert!(gateway.reload().contains("telemetry.replay"));
        let limit = Instant::now() + Duration::from_secs(20);
        while gateway.ask("GET /v1/linkdb").contains("\"source\":\"replay\"") != runs {
            assert!(Instant::now() < limit, "{}", gateway.ask("GET /v1/linkdb"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn data_plane_continues_while_certificates_are_read() {
    let gateway = Gateway::start();
    let other = issue(&gateway.authority, gateway.folder.path(), "train-8");
    gateway.authority.revoke_file(&other.certificate_file).unwrap();
    let list = gateway.path("revoked.crl");
    let text = fs::read(&list).unwrap();
    fs::remove_file(&list).unwrap();
    nix::unistd::mkfifo(&list, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let mut waits = 0;
    let answer = std::thread::scope(|scope| {
        let reload = scope.spawn(|| gateway.reload());
        while !reload.is_finished() {
            let mut options = OpenOptions::new();
            let options = options.write(true).custom_flags(nix::libc::O_NONBLOCK);
            // Opening succeeds while a reader waits for data.
            if let Ok(mut fifo) = options.open(&list) {
                waits += 1;
                let status = gateway.ask("GET /v1/status");
                assert!(status.starts_with("HTTP/1.1 200"), "reading {waits}: {status}");
                let _ = fifo.write_all(&text);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        reload.join().unwrap()
    });
    assert!(answer.contains("tls.revocations"), "{answer}");
    assert!(waits >= 2, "it was read {waits} times");
}
