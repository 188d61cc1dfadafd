//! The daemon as a process, with a gateway of this process at the other end.

#![allow(clippy::unwrap_used)] // also in the helpers

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Poll};
use polyrail_control::pki::{Authority, IssueRequest, NodeRole};
use polyrail_model::{Destination, HostName, Identity, InstanceId, UserId};
use polyrail_relay::{Label, Relay, RelayEvent, RelaySettings};
use polyrail_session::{Endpoint, Event, ResetReason, Settings};
use polyrail_tunnel::{CarrierSpec, IdentityPaths, SystemClock, TlsIdentity, tls};

struct Cloud {
    process: Child,
    log: PathBuf,
}

impl Drop for Cloud {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Cloud {
    fn start(dir: &Path, address: SocketAddr) -> Self {
        let tls = "[tls]\ncertificate = \"c.crt\"\nkey = \"c.key\"\nauthority = \"ca.crt\"\n";
        let carriers = "[carrier_congestion]\nsatellite = \"reno\"\n";
        let config = dir.join("cloud.toml");
        fs::write(&config, format!("listen = [\"{address}\"]\n{tls}{carriers}")).unwrap();
        let log = dir.join("log");
        let process = Command::new(env!("CARGO_BIN_EXE_polyrail-cloud"))
            .args(["--log-level", "debug", "--config"])
            .arg(&config)
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let cloud = Self { process, log };
        cloud.until_logged("polyrail-cloud is ready");
        cloud
    }

    /// The first line of the log that contains `text`.
    fn until_logged(&self, text: &str) -> String {
        let limit = Instant::now() + Duration::from_secs(20);
        loop {
            let log = fs::read_to_string(&self.log).unwrap();
            if let Some(line) = log.lines().find(|line| line.contains(text)) {
                return line.to_owned();
            }
            assert!(Instant::now() < limit, "{text:?} is not in the log:\n{log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Gateway {
    poll: Poll,
    relay: Relay,
}

impl Gateway {
    fn until<T>(&mut self, what: &str, mut wanted: impl FnMut(RelayEvent) -> Option<T>) -> T {
        let limit = Instant::now() + Duration::from_secs(20);
        let mut events = Events::with_capacity(64);
        while Instant::now() < limit {
            self.poll.poll(&mut events, Some(Duration::from_millis(1))).unwrap();
            let now = Instant::now();
            for event in &events {
                self.relay.on_event(now, event);
            }
            self.relay.turn(now);
            while let Some(event) = self.relay.poll_event() {
                if let Some(found) = wanted(event) {
                    return found;
                }
            }
        }
        panic!("no {what}");
    }
}

fn issue(authority: &Authority, dir: &Path, name: &str, role: NodeRole) -> TlsIdentity {
    let name = Identity::new(name).unwrap();
    let request = IssueRequest { name, role, days: 397, out: dir.to_owned(), force: false };
    let issued = authority.issue(&request).unwrap();
    let paths = IdentityPaths {
        certificate: issued.certificate_file,
        key: issued.key_file,
        authority: dir.join("ca.crt"),
        revocations: None,
    };
    TlsIdentity::load(&paths).unwrap()
}

#[test]
fn a_carrier_gets_its_congestion_control_and_a_failed_dial_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let authority = Authority::create(dir, "Test", false).unwrap();
    issue(&authority, dir, "c", NodeRole::Cloud);
    let identity = issue(&authority, dir, "train-7", NodeRole::Gateway);
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let cloud = Cloud::start(dir, address);

    let now = Instant::now();
    let poll = Poll::new().unwrap();
    let registry = poll.registry().try_clone().unwrap();
    let endpoint = Endpoint::gateway(now, Settings::default(), InstanceId([7; 16]));
    let relay = Relay::new(registry, endpoint, RelaySettings::default());
    let mut gateway = Gateway { poll, relay };
    let name = Identity::new("c").unwrap();
    let mut client = tls::Client::new(identity, name, Arc::new(SystemClock)).unwrap();
    for carrier in ["lte", "satellite"] {
        let spec = CarrierSpec { name: carrier.to_owned(), ..CarrierSpec::default() };
        let tunnel = client.connect(now, &spec, address).unwrap();
        let label = Label { carrier: carrier.to_owned(), backup: false };
        gateway.relay.add_tunnel(tunnel, label).unwrap();
        gateway.until("path", |event| {
            matches!(event, RelayEvent::Session(Event::PathUp { .. })).then_some(())
        });
    }
    let line = cloud.until_logged("congestion control set");
    assert!(line.contains("satellite") && line.contains("reno"), "{line}");

    let closed: SocketAddr = "127.0.0.1:9".parse().unwrap();
    let named = Destination::Name(HostName::new("localhost").unwrap(), 9);
    for destination in [Destination::Address(closed), named] {
        let endpoint = gateway.relay.endpoint();
        endpoint.open(Instant::now(), UserId(1), destination.clone()).unwrap();
        let told = gateway.until("reset", |event| match event {
            RelayEvent::Session(Event::Reset { reason, .. }) => Some(reason),
            _ => None,
        });
        let line = cloud.until_logged(&format!("cannot reach {destination}: "));
        assert!(line.contains("train-7") && line.contains(&format!("{told:?}")), "{line}");
        assert_eq!(told, ResetReason::Forbidden);
    }
    let log = fs::read_to_string(&cloud.log).unwrap();
    assert_eq!(log.matches("congestion control set").count(), 1, "{log}");
}
