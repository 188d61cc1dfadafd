//! The congestion control of the tunnels towards gateways.
//!
//! Most bytes flow in this direction, over radio links that lose packets at random: the default is
//! bbr, or the kernel's default if bbr is not available, with a warning that names the remedy.
//! Carriers may have their own. A tunnel over TCP starts with the usual control and changes when
//! the gateway reports its carrier; over QUIC the gateway's first packet names the carrier, and a
//! connection keeps its first control. The gateway configures its own direction.

use std::collections::BTreeMap;

use polyrail_config::CloudConfig;
use polyrail_daemon::Survey;
use polyrail_model::TunnelMode;
use polyrail_relay::Relay;
use polyrail_relay::congestion::{kernel_has, quic_has};
use polyrail_session::TunnelKey;
use polyrail_tunnel::kernel_control;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// The congestion controls that can be used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Congestion {
    /// The first control of tunnels over TCP, by the kernel's name; `None` without TCP.
    pub(crate) usual: Option<String>,
    by_carrier: BTreeMap<String, String>,
    /// The control of tunnels over QUIC: one of [`QUIC`](polyrail_relay::congestion::QUIC).
    pub(crate) quic: String,
    /// The controls of single carriers over QUIC.
    pub(crate) quic_by_carrier: BTreeMap<String, String>,
}

impl Congestion {
    /// The configured controls, as far as the kernel and QUIC have them, else the defaults; and
    /// warnings about the missing ones.
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
        if config.common.mode.allows_tls() {
            let usable = is_good(kernel_has("congestion", wanted, "the kernel's default"));
            let usual = || Some(kernel_control(wanted).to_owned());
            chosen.usual = if usable { usual() } else { kernels_default() };
            chosen.by_carrier = carriers()
                .filter(|(carrier, control)| is_good(kernel_has(&key(carrier), control, others)))
                .collect();
        }
        if config.common.mode.allows_quic() {
            if is_good(quic_has("congestion", wanted, USUAL)) {
                chosen.quic = wanted.to_owned();
            }
            chosen.quic_by_carrier = carriers()
                .filter(|(carrier, control)| is_good(quic_has(&key(carrier), control, others)))
                .collect();
        }
        (chosen, warnings)
    }

    /// A tunnel became a path, so its carrier is known.
    pub(crate) fn on_path_up(&self, relay: &mut Relay, tunnel: TunnelKey) {
        if self.by_carrier.is_empty() {
            return;
        }
        let Some(session) = relay.endpoint_ref().session_of(tunnel) else { return };
        let survey = Survey::of_session(std::time::Instant::now(), relay, session);
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
        // A new control was tried when the configuration was read.
        Err(error) => tracing::debug!(carrier, congestion, %error, "cannot set congestion control"),
    }
}

/// The kernel's default by name, to set it on connections that have another control.
fn kernels_default() -> Option<String> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP)).ok()?;
    let name = SockRef::from(&socket).tcp_congestion().ok()?;
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    std::str::from_utf8(name).ok().map(str::to_owned)
}

const USUAL: &str = "bbr";

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use polyrail_model::Identity;
    use polyrail_relay::{Label, RelayEvent};
    use polyrail_session::Event;

    use super::*;
    use crate::fake;
    use crate::side::Side;

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
        assert_eq!(chosen("", "").usual.as_deref(), Some(bbr));
        assert_eq!(chosen("congestion = \"reno\"", "").usual.as_deref(), Some("reno"));
        assert_eq!(chosen("congestion = \"warp\"", "").usual.as_deref(), Some(default.as_str()));
        let table = "[carrier_congestion]\na = \"reno\"\nb = \"warp\"\n";
        let carriers = chosen("", table).by_carrier;
        assert_eq!(carriers, BTreeMap::from([("a".to_owned(), "reno".to_owned())]));
        let quic = chosen("congestion = \"cubic\"", table);
        assert_eq!((quic.quic.as_str(), &quic.quic_by_carrier), ("cubic", &carriers));
        assert_eq!(chosen("congestion = \"warp\"", "").quic, "bbr");
        assert_eq!(chosen("mode = \"quic\"", "").usual, None);
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

    #[test]
    fn path_gets_the_congestion_control_of_its_carrier() {
        let now = Instant::now();
        let congestion = chosen("", "[carrier_congestion]\nsatellite = \"reno\"\n");
        let (mut gateway, mut cloud) = (Side::gateway(), Side::cloud());
        let (train, ground) = (Identity::new("train").unwrap(), Identity::new("cloud").unwrap());
        let mut controls = Vec::new();
        for (carrier, secret) in [("lte", 1), ("satellite", 2)] {
            let (near, far) = fake::pair(&train, &ground, [secret; 32]).unwrap();
            controls.push((near.control(), far.control()));
            let label = Label { carrier: carrier.to_owned(), ..Label::default() };
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
