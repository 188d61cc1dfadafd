//! The congestion control of the tunnels towards gateways.
//!
//! Most bytes flow this way, over radio links that lose packets at random: bbr is taken unless the
//! operator wants another, and the kernel's default where the kernel does not let us, with a
//! warning that names the remedy. Carriers may have their own. Over TCP a tunnel begins with the
//! usual one and changes when the gateway has told which carrier it is; over QUIC the gateway's
//! first packet says which carrier it is, and a connection keeps its first control. (The gateway's
//! own direction is configured there.)

use std::collections::BTreeMap;

use polyrail_config::CloudConfig;
use polyrail_daemon::Survey;
use polyrail_model::TunnelMode;
use polyrail_relay::Relay;
use polyrail_relay::congestion::{kernel_has, quic_has};
use polyrail_session::TunnelKey;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// The congestion controls that can be used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Congestion {
    /// By the kernel's names.
    usual: Option<String>,
    by_carrier: BTreeMap<String, String>,
    /// Over QUIC: of [`QUIC`](polyrail_relay::congestion::QUIC).
    quic: String,
    quic_by_carrier: BTreeMap<String, String>,
}

impl Congestion {
    /// Takes what the operator wants, as far as the kernel and QUIC have it, and the kernel's
    /// default in its place; answers with warnings of the rest.
    pub(crate) fn choose(config: &CloudConfig) -> (Self, Vec<String>) {
        let wanted = config.congestion.as_ref().map_or(USUAL, |control| control.as_str());
        let carriers = || {
            let all = config.carrier_congestion.iter();
            all.map(|(carrier, control)| (carrier.to_string(), control.to_string()))
        };
        let key = |carrier: &str| format!("carrier_congestion.{carrier}");
        let others = "that of the other carriers";
        let mut chosen = Self {
            usual: None,
            by_carrier: BTreeMap::new(),
            quic: USUAL.to_owned(),
            quic_by_carrier: BTreeMap::new(),
        };
        let mut warnings = Vec::new();
        let mut is_good = |verdict: Result<(), String>| match verdict {
            Ok(()) => true,
            Err(warning) => {
                warnings.push(warning);
                false
            }
        };
        if config.mode.allows_tls() {
            let usable = is_good(kernel_has("congestion", wanted, "the kernel's default"));
            chosen.usual = if usable { Some(wanted.to_owned()) } else { kernels_default() };
            chosen.by_carrier = carriers()
                .filter(|(carrier, control)| is_good(kernel_has(&key(carrier), control, others)))
                .collect();
        }
        if config.mode.allows_quic() {
            if is_good(quic_has("congestion", wanted, USUAL)) {
                chosen.quic = wanted.to_owned();
            }
            chosen.quic_by_carrier = carriers()
                .filter(|(carrier, control)| is_good(quic_has(&key(carrier), control, others)))
                .collect();
        }
        (chosen, warnings)
    }

    /// What tunnels over TCP begin with; `None` when there are none.
    pub(crate) fn usual(&self) -> Option<&str> {
        self.usual.as_deref()
    }

    /// What tunnels over QUIC have.
    pub(crate) fn quic(&self) -> &str {
        &self.quic
    }

    /// Carriers whose tunnels over QUIC have another.
    pub(crate) fn quic_by_carrier(&self) -> &BTreeMap<String, String> {
        &self.quic_by_carrier
    }

    /// A tunnel has become a path: its carrier is known now.
    pub(crate) fn on_path_up(&self, relay: &mut Relay, tunnel: TunnelKey) {
        if self.by_carrier.is_empty() {
            return;
        }
        let survey = Survey::new(std::time::Instant::now(), relay);
        let Some((_, path)) = survey.path(tunnel) else { return };
        if path.mode == TunnelMode::Tls
            && let Some(congestion) = self.by_carrier.get(&path.carrier)
        {
            let carrier = path.carrier.clone();
            set(relay, tunnel, &carrier, congestion);
        }
    }

    /// After a change: paths over TCP get their new control. Paths over QUIC keep theirs.
    pub(crate) fn apply(&self, relay: &mut Relay) {
        let sessions = relay.endpoint_ref().status().sessions;
        for path in sessions.into_iter().flat_map(|session| session.paths) {
            let wanted = self.by_carrier.get(&path.carrier).or(self.usual.as_ref());
            if let (TunnelMode::Tls, Some(congestion)) = (path.mode, wanted) {
                set(relay, path.tunnel, &path.carrier, congestion);
            }
        }
    }
}

fn set(relay: &mut Relay, tunnel: TunnelKey, carrier: &str, congestion: &str) {
    match relay.set_congestion(tunnel, congestion) {
        Ok(()) => tracing::debug!(carrier, congestion, "congestion control set"),
        Err(error) => tracing::warn!(carrier, congestion, %error, "cannot set congestion control"),
    }
}

/// By its name, so that connections which have another can be told to take it.
fn kernels_default() -> Option<String> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP)).ok()?;
    let name = SockRef::from(&socket).tcp_congestion().ok()?;
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    std::str::from_utf8(name).ok().map(str::to_owned)
}

const USUAL: &str = "bbr";

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use mio::{Events, Poll};
    use polyrail_model::{Identity, InstanceId};
    use polyrail_relay::{Label, RelayEvent, RelaySettings};
    use polyrail_session::{Endpoint, Event, Settings};

    use super::*;
    use crate::fake;

    fn choose(top: &str, table: &str) -> (Congestion, Vec<String>) {
        let tls = "[tls]\ncertificate = \"c\"\nkey = \"k\"\nauthority = \"a\"\n";
        let text = format!("listen = [\"[::]:4433\"]\n{top}\n{tls}{table}");
        Congestion::choose(&CloudConfig::parse(&text, Path::new("cloud.toml")).unwrap())
    }

    fn chosen(top: &str, table: &str) -> Congestion {
        choose(top, table).0
    }

    // reno is built into every kernel and allowed to everybody.
    #[test]
    fn unavailable_congestion_controls_fall_back_to_the_default() {
        let default = kernels_default().expect("a kernel's default");
        assert_eq!(kernel_has("", &default, ""), Ok(()));
        let bbr = if kernel_has("", "bbr", "").is_ok() { "bbr" } else { default.as_str() };
        assert_eq!(chosen("", "").usual(), Some(bbr));
        assert_eq!(chosen("congestion = \"reno\"", "").usual(), Some("reno"));
        assert_eq!(chosen("congestion = \"warp\"", "").usual(), Some(default.as_str()));
        let table = "[carrier_congestion]\na = \"reno\"\nb = \"warp\"\n";
        let carriers = chosen("", table).by_carrier;
        assert_eq!(carriers, BTreeMap::from([("a".to_owned(), "reno".to_owned())]));
        let quic = chosen("congestion = \"cubic\"", table);
        assert_eq!((quic.quic(), quic.quic_by_carrier()), ("cubic", &carriers));
        assert_eq!(chosen("congestion = \"warp\"", "").quic(), "bbr");
        assert_eq!(chosen("mode = \"quic\"", "").usual(), None);
    }

    #[test]
    fn unavailable_congestion_controls_are_warned_about() {
        let table = "[carrier_congestion]\na = \"cubic\"\nb = \"warp\"\n";
        let (_, warnings) = choose("congestion = \"reno\"\nmode = \"quic\"", table);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("carrier_congestion.b: QUIC has no"), "{warnings:?}");
        let (_, warnings) = choose("congestion = \"warp\"\nmode = \"tls\"", "");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("modprobe tcp_warp"), "{warnings:?}");
        assert_eq!(choose("congestion = \"reno\"", "").1, [""; 0]);
    }

    /// One end of tunnels: a relay and its poll.
    pub(crate) struct Side {
        poll: Poll,
        pub(crate) relay: Relay,
    }

    impl Side {
        pub(crate) fn new(endpoint: Endpoint) -> Self {
            let poll = Poll::new().unwrap();
            let registry = poll.registry().try_clone().unwrap();
            Self { poll, relay: Relay::new(registry, endpoint, RelaySettings::default()) }
        }

        pub(crate) fn turn(&mut self) -> Vec<RelayEvent> {
            let mut events = Events::with_capacity(64);
            self.poll.poll(&mut events, Some(Duration::from_millis(1))).unwrap();
            let now = Instant::now();
            for event in &events {
                self.relay.on_event(now, event);
            }
            self.relay.turn(now);
            std::iter::from_fn(|| self.relay.poll_event()).collect()
        }
    }

    #[test]
    fn a_path_gets_its_carriers_congestion_control() {
        let now = Instant::now();
        let congestion = chosen("", "[carrier_congestion]\nsatellite = \"reno\"\n");
        let gateway = Endpoint::gateway(now, Settings::default(), InstanceId([7; 16]));
        let mut gateway = Side::new(gateway);
        let mut cloud = Side::new(Endpoint::cloud(now, Settings::default(), [9; 32]));
        let (train, ground) = (Identity::new("train").unwrap(), Identity::new("cloud").unwrap());
        let mut controls = Vec::new();
        for (carrier, secret) in [("lte", 1), ("satellite", 2)] {
            let (near, far) = fake::pair(&train, &ground, [secret; 32]).unwrap();
            controls.push((near.control(), far.control()));
            let label = Label { carrier: carrier.to_owned(), backup: false };
            gateway.relay.add_tunnel(Box::new(near), label).unwrap();
            cloud.relay.add_tunnel(Box::new(far), Label::default()).unwrap();
        }
        let mut up = 0;
        while up < 2 {
            assert!(now.elapsed() < Duration::from_secs(30), "{up} paths are up");
            gateway.turn();
            for event in cloud.turn() {
                if let RelayEvent::Session(Event::PathUp { tunnel, .. }) = event {
                    up += 1;
                    congestion.on_path_up(&mut cloud.relay, tunnel);
                }
            }
        }
        let set = || -> Vec<_> {
            controls.iter().map(|(near, far)| (near.congestion(), far.congestion())).collect()
        };
        assert_eq!(set(), [(None, None), (None, Some("reno".to_owned()))]);
        // An unavailable control is replaced by the default, not by the one before.
        chosen("congestion = \"reno\"", "").apply(&mut cloud.relay);
        assert_eq!(set(), [(None, Some("reno".to_owned())), (None, Some("reno".to_owned()))]);
        chosen("congestion = \"warp\"", "").apply(&mut cloud.relay);
        assert_eq!(set(), [(None, kernels_default()), (None, kernels_default())]);
        let gone = cloud.relay.set_congestion(TunnelKey(99), "reno").unwrap_err();
        assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
    }
}
