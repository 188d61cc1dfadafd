//! The carriers of a configuration: what operators and reloads do to them, with real sockets.

mod cloud;

use std::path::Path;
use std::time::{Duration, Instant};

use mio::{Events, Poll};
use polyrail_admin::{
    AdminEvent, CapLevel, DataUsage, ErrorCode, LinkChange, PathChange, PathPhase, PathState,
    RestartWish,
};
use polyrail_config::{Cap, CapAction, CarrierRole, GatewayConfig, Mode};
use polyrail_identity::{Authority, IdentityPaths, IssueRequest, NodeRole, TlsIdentity};
use polyrail_model::{Identity, InstanceId};
use polyrail_relay::{Relay, RelayEvent, RelaySettings};
use polyrail_session::{Endpoint, Event, Settings};
use time::macros::date;

use super::{Carriers, Clients, Effort};

const CONFIG: &str = r#"
mode = "auto"
[tls]
certificate = "g.crt"
key = "g.key"
authority = "ca.crt"
[cloud]
name = "cloud"
addresses = ["127.0.0.1:9"]
[socks5]
listen = ["127.0.0.1:1080"]
[[carrier]]
name = "a"
source = "127.0.0.1"
[[carrier]]
name = "b"
interface = "none0"
[[carrier]]
name = "c"
source = "127.0.0.2"
role = "never"
"#;

struct World {
    carriers: Carriers,
    config: GatewayConfig,
    relay: Relay,
    poll: Poll,
    authority: Authority,
    folder: tempfile::TempDir,
}

impl World {
    /// The interface of carrier `b` is gone.
    fn remove_interface(&mut self) {
        let change = LinkChange {
            interface: "none0".to_owned(),
            index: 0,
            present: false,
            up: false,
            addresses: Vec::new(),
        };
        self.carriers.on_link(Instant::now(), change);
    }

    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create(folder.path(), "test", false).unwrap();
        let identity = identity(&authority, folder.path(), "train", NodeRole::Gateway);
        let config = parse(CONFIG);
        let clients = Clients::new(&identity, &config.cloud.name).unwrap();
        let poll = Poll::new().unwrap();
        let registry = poll.registry().try_clone().unwrap();
        let endpoint = Endpoint::gateway(Instant::now(), Settings::default(), InstanceId([1; 16]));
        let relay = Relay::new(registry, endpoint, RelaySettings::default());
        let carriers = Carriers::new(&config, (&config.cloud.name, 0), clients, 3);
        Self { carriers, config, relay, poll, authority, folder }
    }

    /// Runs the loop for a while.
    fn run(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.turn();
        }
    }

    fn turn(&mut self) {
        let mut events = Events::with_capacity(64);
        self.poll.poll(&mut events, Some(Duration::from_millis(2))).unwrap();
        let now = Instant::now();
        for event in &events {
            self.relay.on_event(now, event);
        }
        self.carriers.on_turn(now, &mut self.relay);
        self.relay.turn(now);
        while let Some(event) = self.relay.poll_event() {
            match event {
                RelayEvent::TunnelClosed { tunnel, reason, .. } => {
                    self.carriers.on_closed(now, tunnel, &reason);
                }
                RelayEvent::TunnelEarly { tunnel } => self.carriers.on_early(tunnel),
                RelayEvent::TunnelUp { tunnel, .. } => self.carriers.on_up(now, tunnel),
                RelayEvent::TunnelRefused { tunnel, reason, .. } => {
                    self.carriers.on_refused(now, tunnel, &reason);
                }
                RelayEvent::Session(Event::PathUp { tunnel, path, .. }) => {
                    self.carriers.on_path(now, tunnel, path.0);
                }
                RelayEvent::Session(Event::PathStalled { tunnel, .. }) => {
                    self.carriers.on_stall(now, &self.relay, tunnel);
                }
                RelayEvent::Session(Event::PathRecovered { tunnel }) => {
                    self.carriers.on_recovered(tunnel);
                }
                RelayEvent::Session(Event::SessionUp { .. }) => {}
                other => panic!("nobody is there to cause {other:?}"),
            }
        }
    }

    fn states(&self) -> Vec<PathState> {
        self.carriers.states(Instant::now(), &self.relay)
    }

    fn state(&self, name: &str) -> PathState {
        self.states().into_iter().find(|state| state.name == name).unwrap()
    }

    fn set(&mut self, name: &str, change: PathChange) -> Result<(), ErrorCode> {
        let outcome = self.carriers.set_path(Instant::now(), name, &change);
        outcome.map_err(|error| error.code())
    }

    fn reload(&mut self, text: &str) {
        let config = parse(text);
        self.carriers.reload(Instant::now(), &mut self.relay, &config);
        self.config = config;
    }
}

fn identity(authority: &Authority, folder: &Path, name: &str, role: NodeRole) -> TlsIdentity {
    let request = IssueRequest {
        name: Identity::new(name).unwrap(),
        role,
        days: 10,
        out: folder.to_owned(),
        force: false,
    };
    let issued = authority.issue(&request).unwrap();
    let identity = TlsIdentity::load(&IdentityPaths {
        certificate: issued.certificate_file,
        key: issued.key_file,
        authority: folder.join("ca.crt"),
        revocations: None,
    });
    identity.unwrap()
}

fn parse(text: &str) -> GatewayConfig {
    GatewayConfig::parse(text, Path::new("/etc/gateway.toml")).unwrap()
}

fn enabled(enabled: bool) -> PathChange {
    PathChange { enabled: Some(enabled), ..PathChange::default() }
}

fn restart(wish: RestartWish) -> PathChange {
    PathChange { restart: Some(wish), ..PathChange::default() }
}

fn mode(mode: Mode) -> PathChange {
    PathChange { mode: Some(mode), ..PathChange::default() }
}

#[test]
fn refused_attempts_are_retried_and_counted() {
    let mut world = World::new();
    world.run(Duration::from_millis(600));
    let state = world.state("a");
    assert_eq!((state.state, state.mode, state.enabled), (PathPhase::Down, None, true));
    let counters = state.counters;
    assert!(counters.quic_attempts >= 1 && counters.tls_attempts >= 1, "{counters:?}");
    assert!(counters.attempts <= 30, "{counters:?}");
    assert!(world.relay.tunnel_count() <= 3, "{} tunnels", world.relay.tunnel_count());
    let states = world.states();
    let names: Vec<&str> = states.iter().map(|state| state.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(world.state("c").state, PathPhase::Disabled);
    assert_eq!(world.state("c").counters.attempts, 0);
}

#[test]
fn missing_interface_stops_all_attempts() {
    let mut world = World::new();
    world.remove_interface();
    world.run(Duration::from_millis(300));
    let state = world.state("b");
    assert_eq!((state.state, state.counters.attempts), (PathPhase::NoInterface, 0));
    assert!(world.state("a").counters.attempts > 0);
}

#[test]
fn operator_changes_are_limited_by_the_configuration() {
    let mut world = World::new();
    assert_eq!(world.set("x", enabled(true)), Err(ErrorCode::UnknownPath));
    assert_eq!(world.set("c", enabled(true)), Err(ErrorCode::Refused));
    world.set("a", enabled(false)).unwrap();
    let restart = restart(RestartWish::Wanted);
    assert_eq!(world.set("a", restart.clone()), Err(ErrorCode::Refused));
    world.run(Duration::from_millis(100));
    let state = world.state("a");
    assert_eq!((state.state, state.counters.attempts), (PathPhase::Disabled, 0));
    world.set("a", PathChange { mode: Some(Mode::Tls), ..enabled(true) }).unwrap();
    world.set("a", restart).unwrap();
    world.run(Duration::from_millis(300));
    let state = world.state("a");
    assert_eq!((state.state, state.configured_mode), (PathPhase::Down, Mode::Tls));
    assert!(state.counters.tls_attempts > 0);
    assert_eq!(state.counters.quic_attempts, 0);
}

#[test]
fn role_cap_and_rate_limit_change_at_run_time() {
    let mut world = World::new();
    let role = |role| PathChange { role: Some(role), ..PathChange::default() };
    world.set("a", role(CarrierRole::Never)).unwrap();
    assert_eq!(world.set("a", enabled(true)), Err(ErrorCode::Refused));
    world.run(Duration::from_millis(50));
    let state = world.state("a");
    assert_eq!((state.role, state.state), (CarrierRole::Never, PathPhase::Disabled));
    world.set("c", role(CarrierRole::Secondary)).unwrap();
    world.run(Duration::from_millis(200));
    assert!(world.state("c").counters.attempts > 0, "it was \"never\" in the configuration");

    let cap = Cap { bytes: "1 MB".parse().unwrap(), reset_day: 1, at: CapAction::Stop };
    let cap = PathChange { cap: Some(Some(cap)), ..PathChange::default() };
    assert_eq!(world.set("a", cap.clone()), Err(ErrorCode::Refused), "it has no interface");
    world.set("b", cap).unwrap();
    let [metered] = &world.carriers.metered()[..] else { panic!("b has a cap") };
    assert_eq!((metered.carrier.as_str(), metered.interface.as_str()), ("b", "none0"));
    let (since, until) = (date!(2026 - 11 - 01), date!(2026 - 12 - 01));
    let used = |used_bytes| DataUsage { carrier: "b".to_owned(), used_bytes, since, until };
    for (bytes, phase, level) in [
        (999_999, PathPhase::Down, CapLevel::NearlyReached),
        (1_000_000, PathPhase::Capped, CapLevel::Reached),
        (0, PathPhase::Down, CapLevel::Low),
    ] {
        world.carriers.on_usage(Instant::now(), &[used(bytes)]);
        world.run(Duration::from_millis(20));
        let state = world.state("b");
        assert_eq!((state.state, state.enabled), (phase, true), "{bytes}");
        let cap = state.cap.unwrap();
        assert_eq!((cap.level, cap.used_bytes), (level, Some(bytes)));
        let events = world.carriers.take_events();
        let is_level = |told: &CapLevel| *told == level;
        let told = |event: &AdminEvent| match event {
            AdminEvent::DataCap { level, .. } => is_level(level),
            _ => false,
        };
        assert_eq!(events.iter().filter(|event| told(event)).count(), 1, "{events:?}");
    }
    world.set("b", PathChange { cap: Some(None), ..PathChange::default() }).unwrap();
    assert!(world.carriers.metered().is_empty() && world.state("b").cap.is_none());
}

#[test]
fn reload_keeps_operator_settings_of_unchanged_keys() {
    let mut world = World::new();
    world.set("a", mode(Mode::Tls)).unwrap();
    world.set("b", enabled(false)).unwrap();
    world.reload(CONFIG);
    assert_eq!(world.state("a").configured_mode, Mode::Tls);
    assert!(!world.state("b").enabled);
    world.reload(&CONFIG.replace("\"none0\"", "\"none0\"\nmetered = true"));
    assert!(!world.state("b").enabled, "another key changed");
    world.reload(&CONFIG.replace("\"127.0.0.1\"", "\"127.0.0.1\"\nmode = \"auto\""));
    assert_eq!(world.state("a").configured_mode, Mode::Auto, "the file sets the mode");
    world.set("a", mode(Mode::Tls)).unwrap();
    world.reload(&CONFIG.replace("mode = \"auto\"", "mode = \"quic\""));
    assert_eq!(world.state("a").configured_mode, Mode::Quic);
    assert!(!world.state("b").enabled);
    world.reload(&CONFIG.replace("\"none0\"", "\"none0\"\nenabled = false"));
    world.reload(CONFIG);
    assert!(world.state("b").enabled);
    assert_eq!(world.state("a").configured_mode, Mode::Auto);
}

#[test]
fn reload_adds_and_removes_carriers() {
    let mut world = World::new();
    world.run(Duration::from_millis(100));
    let b = "[[carrier]]\nname = \"b\"\ninterface = \"none0\"\n";
    let d = "[[carrier]]\nname = \"d\"\nsource = \"127.0.0.3\"\n";
    assert!(CONFIG.contains(b));
    world.reload(&CONFIG.replace(b, d));
    world.run(Duration::from_millis(300));
    let states = world.states();
    let names: Vec<&str> = states.iter().map(|state| state.name.as_str()).collect();
    assert_eq!(names, ["a", "d", "c"]);
    assert!(world.state("d").counters.attempts > 0);
    // Many reloads in a row.
    for _ in 0..20 {
        world.reload(CONFIG);
        world.run(Duration::from_millis(5));
        world.reload(&CONFIG.replace(b, d).replace("127.0.0.1:9", "127.0.0.1:10"));
        world.run(Duration::from_millis(5));
    }
    world.run(Duration::from_millis(100));
    assert!(world.relay.tunnel_count() <= 8, "{} tunnels", world.relay.tunnel_count());
    world.reload(&CONFIG.replace("\"127.0.0.1\"", "\"127.0.0.1\"\nenabled = false"));
    world.run(Duration::from_millis(100));
    assert_eq!(world.state("a").state, PathPhase::Disabled);
    assert!(world.state("a").connections.is_empty());
}

#[test]
fn unneeded_carriers_are_in_standby_and_probes_spare_metered_ones() {
    let mut world = World::new();
    world.reload(&CONFIG.replace("\"127.0.0.1\"", "\"127.0.0.1\"\nmetered = true"));
    world.carriers.set_effort(Instant::now(), Effort::Off);
    world.run(Duration::from_millis(200));
    let state = world.state("a");
    assert_eq!((state.state, state.enabled), (PathPhase::Standby, true));
    assert_eq!(world.carriers.serves(Instant::now(), "a"), None);
    assert_eq!(world.relay.tunnel_count(), 0);
    assert_eq!(world.state("c").state, PathPhase::Disabled, "by its role");
    // The other carrier is free, as far as is known.
    let before = state.counters.attempts;
    world.carriers.set_effort(Instant::now(), Effort::Probe);
    world.run(Duration::from_millis(600));
    let [a, b] = ["a", "b"].map(|name| world.state(name));
    assert_eq!((a.state, a.counters.attempts), (PathPhase::Standby, before));
    assert!((1..=2).contains(&b.counters.attempts), "{:?}: one of each mode", b.counters);
    world.remove_interface();
    world.run(Duration::from_millis(600));
    let probes = world.state("a").counters.attempts - before;
    assert!((1..=2).contains(&probes), "{probes}: there is no other");
    world.carriers.set_effort(Instant::now(), Effort::Full);
    world.run(Duration::from_millis(1_200));
    assert!(world.state("a").counters.attempts - before > 2, "{:?}", world.state("a").counters);
}
