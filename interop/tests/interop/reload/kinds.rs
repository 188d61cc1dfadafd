//! The kinds of change of a reload, and their visible effects.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use polyrail_interop::addresses::{
    self, CLOUD, CLOUD_PORT, FORBIDDEN, Family, NOBODY, OPENED, RESOLVER, SERVER, SERVER_NAME_V4,
};
use polyrail_interop::client;
use polyrail_interop::configuration::{CLOUD_NAME, Configuration, GATEWAY_NAME, strings};
use polyrail_interop::dns;
use polyrail_interop::lab::Side;
use polyrail_interop::world::World;
use toml::Value;

use super::{SOON, soon};

/// A node whose certificate is revoked during the test.
const STRANGER: &str = "stranger";
/// A port without a listener.
const CLOSED_PORT: u16 = 9;
/// SOCKS5 replies (RFC 1928, section 6).
const NOT_ALLOWED: u8 = 2;
const REFUSED: u8 = 5;
/// The index of the carrier whose interface is free once gamma is removed.
const FREE: u8 = 2;
/// The prefix of [`FORBIDDEN`].
const FORBIDDEN_PREFIX: &str = "198.18.0.0/15";

/// A change of a configuration.
#[derive(Clone, Debug)]
pub(super) enum Edit {
    Set(&'static str, Value),
    Carrier(usize, &'static str, Value),
    /// Without the last carrier.
    WithoutGamma,
    /// The first two carriers swapped.
    Swapped,
    /// A new certificate in the same file.
    Reissued,
    /// A revocation list with another node's certificate.
    Revoked,
    /// The initial configuration.
    Initial,
}

/// The daemon's answer.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    Taken,
    /// Invalid; the message names this key and its line.
    Invalid(&'static str),
    /// This key needs a restart.
    Restart(&'static str),
}

pub(super) struct Reload {
    pub(super) side: Side,
    pub(super) edit: Edit,
    pub(super) answer: Answer,
    /// The effect that users or the operator see.
    pub(super) shows: fn(&World) -> Result<()>,
}

impl Edit {
    /// Changes the file, or a file that it names.
    pub(super) fn apply(&self, world: &World, side: Side, file: &mut Configuration) -> Result<()> {
        let keys = &world.keys;
        match self {
            Edit::Set(key, value) => file.set(key, value.clone()),
            Edit::Carrier(carrier, key, value) => file.set_carrier(*carrier, key, value.clone()),
            Edit::WithoutGamma => file.remove_last_carrier(),
            Edit::Swapped => file.swap_carriers(0, 1),
            Edit::Reissued if side == Side::Cloud => keys.reissue(CLOUD_NAME, "cloud")?,
            Edit::Reissued => keys.reissue(GATEWAY_NAME, "gateway")?,
            Edit::Revoked => {
                // Both sides read the same list; the cloud reads it first.
                if side == Side::Cloud {
                    keys.reissue(STRANGER, "gateway")?;
                    keys.revoke(STRANGER)?;
                }
                let list = keys.folder().join("revoked.crl");
                file.set("tls.revocations", list.display().to_string());
            }
            Edit::Initial => {
                *file = world.configurations[usize::from(side == Side::Cloud)].clone();
            }
        }
        Ok(())
    }
}

/// Every kind of change, each applied after the earlier ones.
pub(super) fn all() -> Vec<Reload> {
    [carriers(), policies(), users(), certificates()].into_iter().flatten().collect()
}

fn carriers() -> Vec<Reload> {
    vec![
        gateway(Edit::WithoutGamma),
        gateway(Edit::Carrier(0, "mode", "quic".into())),
        showing(gateway(Edit::Carrier(0, "interface", format!("wan{FREE}").into())), |world| {
            let wanted = Family::BOTH.map(|family| addresses::carrier_gateway(FREE).of(family));
            world.wait_for_path("alpha", SOON, |path| {
                let local = path["local_address"].as_str().and_then(|it| it.parse().ok());
                let from = local.map(|address: SocketAddr| address.ip().to_canonical());
                path["state"] == "up" && from.is_some_and(|from| wanted.contains(&from))
            })
        }),
        gateway(Edit::Carrier(1, "role", "backup".into())),
        refused(Side::Gateway, Edit::Set("session.lingers", "9s".into()), "session.lingers"),
        showing(gateway(Edit::Set("mode", "tls".into())), |world| {
            world.wait_for_path("beta", SOON, |path| path["state"] == "up" && path["mode"] == "tls")
        }),
        showing(cloud(Edit::Set("congestion", "cubic".into())), |world| {
            soon(|| {
                let tcp = format!("-HOtin state established sport = :{CLOUD_PORT}");
                let all = world.lab.cloud.tool("ss", &tcp)?;
                ensure!(all.contains(" cubic "), "no tunnel over TCP runs cubic:\n{all}");
                Ok(())
            })
        }),
        showing(gateway(Edit::Carrier(0, "enabled", false.into())), |world| {
            world.wait_for_path("alpha", SOON, |path| path["state"] == "disabled")
        }),
        refused(Side::Gateway, Edit::Carrier(1, "role", "spare".into()), "carrier[2].role"),
        gateway(Edit::Swapped),
        gateway(Edit::Initial),
    ]
}

fn policies() -> Vec<Reload> {
    let v6 = strings([CLOUD.at(Family::V6, CLOUD_PORT)]);
    let memory = Answer::Restart("session.memory");
    vec![
        cloud(Edit::Set("scheduler.chain", "round_robin".into())),
        gateway(Edit::Set("scheduler.chain", "redundant".into())),
        gateway(Edit::Set("cloud.addresses", v6)),
        gateway(Edit::Set("restart.enabled", false.into())),
        Reload { answer: memory, ..gateway(Edit::Set("session.memory", "8 MiB".into())) },
        gateway(Edit::Set("session.linger", "90s".into())),
        showing(gateway(Edit::Set("linkdb.forecast", false.into())), |world| {
            soon(|| {
                let state = world.linkdb(Side::Gateway)?;
                ensure!(state["forecast"] == false, "forecasts are still on: {state}");
                Ok(())
            })
        }),
    ]
}

fn users() -> Vec<Reload> {
    let opened = strings(OPENED.into_iter().chain([FORBIDDEN_PREFIX]));
    let nobody = strings([format!("{}/32", NOBODY.v4)]);
    let resolver = SERVER.at(Family::V6, 53).to_string();
    vec![
        showing(gateway(Edit::Set("socks5.reply", "dialed".into())), |world| {
            replies(world, FORBIDDEN.at(Family::V4, 80), NOT_ALLOWED)?;
            replies(world, SERVER.at(Family::V4, CLOSED_PORT), REFUSED)
        }),
        showing(cloud(Edit::Set("access.allow", opened)), |world| {
            replies(world, FORBIDDEN.at(Family::V4, CLOSED_PORT), REFUSED)
        }),
        showing(cloud(Edit::Set("access.deny", nobody)), |world| {
            replies(world, NOBODY.at(Family::V4, 80), NOT_ALLOWED)
        }),
        cloud(Edit::Set("dial.timeout", "1s".into())),
        showing(gateway(Edit::Set("dns.resolver", resolver.into())), |world| {
            let before = world.asked.tcp_v6.load(Ordering::Relaxed);
            let resolver = RESOLVER.at(Family::V4, 53);
            let ask = move || dns::ask_udp(resolver, SERVER_NAME_V4, Family::V4);
            let answer = client::thread(&world.lab.passenger, ask)?;
            let answer = answer.join().ok().context("a client panicked")??;
            ensure!(answer == [IpAddr::V4(SERVER.v4)], "{answer:?}");
            let asked = world.asked.tcp_v6.load(Ordering::Relaxed) - before;
            ensure!(asked > 0, "the configured resolver receives no query");
            Ok(())
        }),
    ]
}

fn certificates() -> Vec<Reload> {
    let listen = Edit::Set("listen", strings(["[::]:4434"]));
    vec![
        cloud(Edit::Reissued),
        gateway(Edit::Reissued),
        showing(cloud(Edit::Revoked), a_fresh_connection_comes_up),
        showing(gateway(Edit::Revoked), a_fresh_connection_comes_up),
        refused(Side::Cloud, Edit::Set("session.lingers", "9s".into()), "session.lingers"),
        gateway(Edit::Set("log.level", "info".into())),
        cloud(Edit::Initial),
        showing(gateway(Edit::Initial), |world| {
            replies(world, FORBIDDEN.at(Family::V4, 80), 0).context("socks5.reply as initially")
        }),
        Reload { answer: Answer::Restart("listen"), ..cloud(listen) },
    ]
}

fn gateway(edit: Edit) -> Reload {
    Reload { side: Side::Gateway, edit, answer: Answer::Taken, shows: |_| Ok(()) }
}

fn cloud(edit: Edit) -> Reload {
    Reload { side: Side::Cloud, ..gateway(edit) }
}

fn refused(side: Side, edit: Edit, key: &'static str) -> Reload {
    Reload { side, answer: Answer::Invalid(key), ..gateway(edit) }
}

fn showing(reload: Reload, shows: fn(&World) -> Result<()>) -> Reload {
    Reload { shows, ..reload }
}

fn replies(world: &World, to: SocketAddr, expected: u8) -> Result<()> {
    let (_, code) = client::socks5(&world.lab.passenger, world.proxy(), to)?;
    ensure!(code == expected, "SOCKS5 reply {code} for {to}, expected {expected}");
    Ok(())
}

/// A path restarted by hand connects with the current certificates and lists.
fn a_fresh_connection_comes_up(world: &World) -> Result<()> {
    let restarts = |path: &serde_json::Value| path["counters"]["restarts"].as_u64();
    let paths = world.paths(Side::Gateway)?;
    let alpha = paths.iter().find(|path| path["name"] == "alpha");
    let before = alpha.and_then(restarts).context("no path alpha")?;
    world.ask(Side::Gateway, "path restart alpha")?;
    world.wait_for_path("alpha", SOON, |path| {
        path["state"] == "up" && restarts(path).is_some_and(|count| count > before)
    })
}
