//! The kinds of change that a reload may bring, and what shows that it did.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_interop::addresses::{
    CLOUD, CLOUD_PORT, FORBIDDEN, Family, NOBODY, RESOLVER, SERVER, SERVER_NAME_V4,
};
use polyrail_interop::client::{self, Target};
use polyrail_interop::configuration::{CLOUD_NAME, Configuration, GATEWAY_NAME, strings};
use polyrail_interop::dns;
use polyrail_interop::world::{Side, World};
use toml::Value;

use super::SOON;

/// A node whose certificate is revoked on the way.
const STRANGER: &str = "stranger";
/// Nobody listens there.
const CLOSED_PORT: u16 = 9;
/// RFC 1928, section 6.
const NOT_ALLOWED: u8 = 2;
const REFUSED: u8 = 5;
/// An address where nobody is fails by itself after 3 s, when its neighbour does not answer.
const BEFORE_THE_KERNEL: Duration = Duration::from_millis(2500);
/// Time for lines that were on their way into the log.
const SETTLING: Duration = Duration::from_millis(200);

/// What is done to a configuration.
#[derive(Debug)]
pub(super) enum Edit {
    Set(&'static str, Value),
    Both([(&'static str, Value); 2]),
    Carrier(usize, &'static str, Value),
    WithoutGamma,
    /// New certificates in the same files.
    Reissued,
    /// A list in which another node's certificate is revoked.
    Revoked,
    /// Back to the first configuration.
    AsAtFirst,
}

/// What must come of it.
#[derive(Clone, Copy)]
pub(super) enum Outcome {
    Taken,
    /// The file is refused, and these words with it; the first is the key.
    Invalid(&'static [&'static str]),
    /// Refused, for the key needs a restart.
    Restart(&'static str),
}

pub(super) struct Reload {
    pub(super) side: Side,
    pub(super) edit: Edit,
    pub(super) outcome: Outcome,
    /// What can be seen of it beside the admin socket.
    pub(super) shows: fn(&World) -> Result<()>,
}

impl Edit {
    /// Changes the file, or what it names.
    pub(super) fn apply(&self, world: &World, side: Side, file: &mut Configuration) -> Result<()> {
        let keys = &world.keys;
        match self {
            Edit::Set(key, value) => file.set(key, value.clone()),
            Edit::Both(pairs) => pairs.iter().for_each(|(key, value)| file.set(key, value.clone())),
            Edit::Carrier(carrier, key, value) => file.set_carrier(*carrier, key, value.clone()),
            Edit::WithoutGamma => file.remove_last_carrier(),
            Edit::Reissued if side == Side::Cloud => keys.reissue(CLOUD_NAME, "cloud")?,
            Edit::Reissued => keys.reissue(GATEWAY_NAME, "gateway")?,
            Edit::Revoked => {
                // Both sides read the same list; the cloud comes first.
                if side == Side::Cloud {
                    keys.reissue(STRANGER, "gateway")?;
                    keys.revoke(STRANGER)?;
                }
                let list = keys.folder().join("revoked.crl");
                file.set("tls.revocations", list.display().to_string());
            }
            Edit::AsAtFirst => {
                let index = usize::from(side == Side::Cloud);
                *file = world.configurations[index].clone();
            }
        }
        Ok(())
    }

    /// The keys that the daemon lists as changed; none where it depends on what was before.
    pub(super) fn keys(&self) -> Vec<String> {
        match self {
            Edit::Set(key, _) => vec![(*key).into()],
            Edit::Both(pairs) => pairs.iter().map(|(key, _)| (*key).into()).collect(),
            Edit::Carrier(index, key, _) => {
                vec![format!("carrier.{}.{key}", super::NAMES[*index])]
            }
            Edit::WithoutGamma => vec!["carrier.gamma".into()],
            Edit::Revoked => vec!["tls.revocations".into()],
            Edit::Reissued | Edit::AsAtFirst => Vec::new(),
        }
    }
}

/// Every kind of change, each on top of those before it.
pub(super) fn all() -> Vec<Reload> {
    [modes_and_roles(), way_to_the_cloud(), users(), certificates_and_logs()]
        .into_iter()
        .flatten()
        .collect()
}

fn modes_and_roles() -> Vec<Reload> {
    let invalid = Outcome::Invalid(&["session.lingers", "unknown key"]);
    let wrong = Outcome::Invalid(&["carrier[2].role", "spare"]);
    vec![
        gateway(Edit::WithoutGamma),
        gateway(Edit::Carrier(0, "mode", "quic".into())),
        cloud(Edit::Set("scheduler.chain", "round_robin".into())),
        gateway(Edit::Carrier(1, "role", "backup".into())),
        refused(Side::Gateway, Edit::Set("session.lingers", "9s".into()), invalid),
        gateway(Edit::Set("mode", "tls".into())),
        gateway(Edit::Carrier(0, "mode", "tls".into())),
        gateway(Edit::Carrier(1, "role", "primary".into())),
        gateway(Edit::AsAtFirst),
        gateway(Edit::Set("mode", "quic".into())),
        gateway(Edit::Carrier(0, "enabled", false.into())),
        refused(Side::Gateway, Edit::Carrier(1, "role", "spare".into()), wrong),
        gateway(Edit::Carrier(0, "enabled", true.into())),
        gateway(Edit::Set("scheduler.chain", "redundant".into())),
        gateway(Edit::AsAtFirst),
    ]
}

fn way_to_the_cloud() -> Vec<Reload> {
    let memory = Outcome::Restart("session.memory");
    let [v4, v6] = [Family::V4, Family::V6].map(|family| strings([CLOUD.at(family, CLOUD_PORT)]));
    let bounds = [("restart.attempts_max", 1.into()), ("restart.interval", "200ms".into())];
    vec![
        gateway(Edit::Set("cloud.addresses", v6)),
        gateway(Edit::Carrier(1, "addresses", v4)),
        gateway(Edit::Carrier(0, "metered", true.into())),
        gateway(Edit::Carrier(1, "congestion", "cubic".into())),
        gateway(Edit::Set("restart.enabled", false.into())),
        refused(Side::Gateway, Edit::Set("session.memory", "8 MiB".into()), memory),
        gateway(Edit::Both(bounds)),
        gateway(Edit::Set("session.linger", "90s".into())),
        cloud(Edit::Set("congestion", "cubic".into())),
        cloud(Edit::Set("session.linger", "80s".into())),
    ]
}

fn users() -> Vec<Reload> {
    let nobody = strings([format!("{}/32", NOBODY.v4)]);
    let resolver = SERVER.at(Family::V6, 53).to_string();
    vec![
        showing(gateway(Edit::Set("socks5.reply", "dialed".into())), |world| {
            replies(world, FORBIDDEN.at(Family::V4, 80), NOT_ALLOWED)?;
            replies(world, SERVER.at(Family::V4, CLOSED_PORT), REFUSED)
        }),
        showing(cloud(Edit::Set("access.deny", nobody)), |world| {
            replies(world, NOBODY.at(Family::V4, 80), NOT_ALLOWED)
        }),
        showing(cloud(Edit::Set("access.deny_ports", Value::Array(vec![25.into(), 9.into()]))), {
            |world| replies(world, SERVER.at(Family::V4, CLOSED_PORT), NOT_ALLOWED)
        }),
        showing(cloud(Edit::Set("dial.timeout", "1s".into())), nobody_is_given_up_early),
        showing(gateway(Edit::Set("dns.resolver", resolver.into())), the_other_resolver_is_asked),
    ]
}

fn certificates_and_logs() -> Vec<Reload> {
    let invalid = Outcome::Invalid(&["session.lingers", "unknown key"]);
    vec![
        cloud(Edit::Reissued),
        gateway(Edit::Reissued),
        showing(cloud(Edit::Revoked), a_fresh_connection_comes_up),
        showing(gateway(Edit::Revoked), a_fresh_connection_comes_up),
        refused(Side::Cloud, Edit::Set("session.lingers", "9s".into()), invalid),
        showing(gateway(Edit::Set("log.level", "info".into())), |world| {
            let from = settled(world);
            a_fresh_connection_comes_up(world)?;
            let log = world.gateway.log();
            ensure!(log[..from].contains(" DEBUG "), "never a line at debug");
            ensure!(!log[from..].contains(" DEBUG "), "still at debug: {}", &log[from..]);
            Ok(())
        }),
        showing(gateway(Edit::Set("log.format", "json".into())), |world| {
            let from = settled(world);
            a_fresh_connection_comes_up(world)?;
            let log = world.gateway.log();
            let mut lines = log[from..].lines().filter(|line| !line.is_empty());
            let json = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
            ensure!(lines.clone().count() > 0, "nothing was logged");
            ensure!(lines.all(json), "not JSON: {}", &log[from..]);
            Ok(())
        }),
        cloud(Edit::Set("log.level", "info".into())),
        cloud(Edit::AsAtFirst),
        showing(gateway(Edit::AsAtFirst), |world| {
            replies(world, FORBIDDEN.at(Family::V4, 80), 0).context("socks5.reply as at first")
        }),
        refused(
            Side::Cloud,
            Edit::Set("listen", strings(["[::]:4434"])),
            Outcome::Restart("listen"),
        ),
    ]
}

fn gateway(edit: Edit) -> Reload {
    Reload { side: Side::Gateway, edit, outcome: Outcome::Taken, shows: |_| Ok(()) }
}

fn cloud(edit: Edit) -> Reload {
    Reload { side: Side::Cloud, ..gateway(edit) }
}

fn refused(side: Side, edit: Edit, outcome: Outcome) -> Reload {
    Reload { side, outcome, ..gateway(edit) }
}

fn showing(reload: Reload, shows: fn(&World) -> Result<()>) -> Reload {
    Reload { shows, ..reload }
}

fn replies(world: &World, to: SocketAddr, expected: u8) -> Result<()> {
    let (_, code) = client::socks5(&world.lab.passenger, world.proxy(), &Target::Address(to))?;
    ensure!(code == expected, "SOCKS5 reply {code} for {to}, expected {expected}");
    Ok(())
}

fn nobody_is_given_up_early(world: &World) -> Result<()> {
    let started = Instant::now();
    let to = Target::Address(NOBODY.at(Family::V6, 80));
    let (_, code) = client::socks5(&world.lab.passenger, world.proxy(), &to)?;
    let took = started.elapsed();
    ensure!(code != 0, "nobody answered");
    ensure!(took < BEFORE_THE_KERNEL, "given up after {took:?}");
    Ok(())
}

fn the_other_resolver_is_asked(world: &World) -> Result<()> {
    let before = world.asked.tcp_v6.load(Ordering::Relaxed);
    let resolver = RESOLVER.at(Family::V4, 53);
    let ask = move || dns::ask_udp(resolver, SERVER_NAME_V4, Family::V4);
    let answer = client::thread(&world.lab.passenger, ask)?;
    let answer = answer.join().ok().context("a client panicked")??;
    ensure!(answer == [IpAddr::V4(SERVER.v4)], "{answer:?}");
    let asked = world.asked.tcp_v6.load(Ordering::Relaxed) - before;
    ensure!(asked > 0, "the resolver that was set is not asked");
    Ok(())
}

/// A restart of a path by hand has it connect with the certificates and lists of this moment.
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

/// Where the gateway's log goes on once all lines of before are in it.
fn settled(world: &World) -> usize {
    std::thread::sleep(SETTLING);
    world.gateway.log().len()
}
