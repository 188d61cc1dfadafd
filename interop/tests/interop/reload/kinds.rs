//! The kinds of change that a reload may bring, and what shows that it did.

use anyhow::{Context, Result, ensure};
use polyrail_interop::addresses::{
    CLOUD, CLOUD_PORT, FORBIDDEN, Family, NOBODY, OPENED, SERVER, WEB_PORT, carrier_gateway,
};
use polyrail_interop::configuration::{CLOUD_NAME, Configuration, GATEWAY_NAME, strings};
use polyrail_interop::world::{Side, World};
use toml::Value;

use super::rail;
use super::shows::{
    a_file_grows_in, a_fresh_connection_comes_up, alpha_leaves_by, carrier_runs, flows_at_once,
    no_more_debug, nobody_is_given_up_early, only_this_family_is_reached, replies, settled,
    the_cloud_logs_to, the_other_resolver_is_asked,
};

/// A node whose certificate is revoked on the way.
const STRANGER: &str = "stranger";
/// Nobody listens there.
const CLOSED_PORT: u16 = 9;
/// RFC 1928, section 6.
const NOT_ALLOWED: u8 = 2;
const REFUSED: u8 = 5;
/// The carrier whose interface is free once gamma is gone.
const FREE: u8 = 2;
/// The prefix of [`FORBIDDEN`].
const FORBIDDEN_PREFIX: &str = "198.18.0.0/15";
/// Beside the configuration files.
const QLOG_FOLDER: &str = "qlog";
const MOVED_LOG: &str = "moved.log";

/// What is done to a configuration.
#[derive(Clone, Debug)]
pub(super) enum Edit {
    Set(&'static str, Value),
    Several(Vec<(&'static str, Value)>),
    Carrier(usize, &'static str, Value),
    WithoutGamma,
    /// The first two carriers in each other's place.
    Swapped,
    /// New certificates in the same files.
    Reissued,
    /// The authority's certificate in another file.
    AuthorityMoved,
    /// A list in which another node's certificate is revoked.
    Revoked,
    /// Telemetry from a file beside the configuration.
    Replayed(&'static str),
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
            Edit::Several(pairs) => {
                pairs.iter().for_each(|(key, value)| file.set(key, value.clone()));
            }
            Edit::Carrier(carrier, key, value) => file.set_carrier(*carrier, key, value.clone()),
            Edit::WithoutGamma => file.remove_last_carrier(),
            Edit::Swapped => file.swap_carriers(0, 1),
            Edit::Reissued if side == Side::Cloud => keys.reissue(CLOUD_NAME, "cloud")?,
            Edit::Reissued => keys.reissue(GATEWAY_NAME, "gateway")?,
            Edit::AuthorityMoved => {
                let moved = keys.folder().join("moved.crt");
                std::fs::copy(keys.folder().join("ca.crt"), &moved)?;
                file.set("tls.authority", moved.display().to_string());
            }
            Edit::Revoked => {
                // Both sides read the same list; the cloud comes first.
                if side == Side::Cloud {
                    keys.reissue(STRANGER, "gateway")?;
                    keys.revoke(STRANGER)?;
                }
                let list = keys.folder().join("revoked.crl");
                file.set("tls.revocations", list.display().to_string());
            }
            Edit::Replayed(name) => {
                let path = world.lab.folder().join(name);
                std::fs::write(&path, rail::line(0) + "\n")?;
                file.set("telemetry.replay", path.display().to_string());
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
            Edit::Several(pairs) => pairs.iter().map(|(key, _)| (*key).into()).collect(),
            Edit::Carrier(index, key, _) => {
                vec![format!("carrier.{}.{key}", super::NAMES[*index])]
            }
            Edit::WithoutGamma => vec!["carrier.gamma".into()],
            Edit::Swapped => vec!["carrier".into()],
            Edit::AuthorityMoved => vec!["tls.authority".into()],
            Edit::Revoked => vec!["tls.revocations".into()],
            Edit::Replayed(_) => vec!["telemetry.replay".into()],
            Edit::Reissued | Edit::AsAtFirst => Vec::new(),
        }
    }
}

/// Every kind of change that load can stand, each on top of those before it.
pub(super) fn all() -> Vec<Reload> {
    [modes_and_roles(), way_to_the_cloud(), users(), certificates_and_logs()]
        .into_iter()
        .flatten()
        .collect()
}

/// Those after which some flows are not opened. SOCKS5 must reply `dialed`.
pub(super) fn without_load() -> Vec<Reload> {
    let other_family = vec![("dial.ipv4", false.into()), ("dial.ipv6", true.into())];
    vec![
        showing(cloud(Edit::Set("dial.ipv6", false.into())), |world| {
            only_this_family_is_reached(world, Family::V4, WEB_PORT)
        }),
        showing(cloud(Edit::Several(other_family)), |world| {
            only_this_family_is_reached(world, Family::V6, WEB_PORT)
        }),
        cloud(Edit::AsAtFirst),
        showing(gateway(Edit::Set("session.flows_max", 2.into())), |world| flows_at_once(world, 2)),
        showing(gateway(Edit::Set("session.flows_max", 4.into())), |world| flows_at_once(world, 4)),
    ]
}

fn modes_and_roles() -> Vec<Reload> {
    let invalid = Outcome::Invalid(&["session.lingers", "unknown key"]);
    let wrong = Outcome::Invalid(&["carrier[2].role", "spare"]);
    let source = carrier_gateway(FREE).v6.to_string();
    vec![
        gateway(Edit::WithoutGamma),
        gateway(Edit::Carrier(0, "mode", "quic".into())),
        showing(gateway(Edit::Carrier(0, "qlog", QLOG_FOLDER.into())), |world| {
            a_file_grows_in(world, QLOG_FOLDER)
        }),
        showing(gateway(Edit::Carrier(0, "interface", format!("wan{FREE}").into())), |world| {
            alpha_leaves_by(world, FREE, &Family::BOTH)
        }),
        showing(gateway(Edit::Carrier(0, "source", source.into())), |world| {
            alpha_leaves_by(world, FREE, &[Family::V6])
        }),
        cloud(Edit::Set("scheduler.chain", "round_robin".into())),
        gateway(Edit::Carrier(1, "role", "backup".into())),
        refused(Side::Gateway, Edit::Set("session.lingers", "9s".into()), invalid),
        gateway(Edit::Set("mode", "tls".into())),
        gateway(Edit::Carrier(0, "mode", "tls".into())),
        showing(gateway(Edit::Carrier(1, "congestion", "cubic".into())), |world| {
            carrier_runs(world, Side::Gateway, 1, "cubic")
        }),
        showing(cloud(Edit::Set("congestion", "cubic".into())), |world| {
            [1, FREE].into_iter().try_for_each(|at| carrier_runs(world, Side::Cloud, at, "cubic"))
        }),
        showing(cloud(Edit::Set("carrier_congestion.alpha", "reno".into())), |world| {
            carrier_runs(world, Side::Cloud, FREE, "reno")?;
            carrier_runs(world, Side::Cloud, 1, "cubic")
        }),
        gateway(Edit::Carrier(1, "role", "primary".into())),
        gateway(Edit::AsAtFirst),
        gateway(Edit::Set("mode", "quic".into())),
        gateway(Edit::Carrier(0, "enabled", false.into())),
        refused(Side::Gateway, Edit::Carrier(1, "role", "spare".into()), wrong),
        gateway(Edit::Carrier(0, "enabled", true.into())),
        gateway(Edit::Set("scheduler.chain", "redundant".into())),
        gateway(Edit::Swapped),
        gateway(Edit::AsAtFirst),
    ]
}

fn way_to_the_cloud() -> Vec<Reload> {
    let memory = Outcome::Restart("session.memory");
    let [v4, v6] = [Family::V4, Family::V6].map(|family| strings([CLOUD.at(family, CLOUD_PORT)]));
    let bounds = vec![
        ("restart.early_data", false.into()),
        ("restart.attempts_max", 1.into()),
        ("restart.interval", "200ms".into()),
    ];
    vec![
        gateway(Edit::Set("cloud.addresses", v6)),
        gateway(Edit::Carrier(1, "addresses", v4)),
        gateway(Edit::Carrier(0, "metered", true.into())),
        gateway(Edit::Set("restart.enabled", false.into())),
        refused(Side::Gateway, Edit::Set("session.memory", "8 MiB".into()), memory),
        gateway(Edit::Several(bounds)),
        gateway(Edit::Set("session.linger", "90s".into())),
        cloud(Edit::Set("session.linger", "80s".into())),
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
        showing(gateway(Edit::AuthorityMoved), a_fresh_connection_comes_up),
        refused(Side::Cloud, Edit::Set("session.lingers", "9s".into()), invalid),
        showing(gateway(Edit::Set("log.level", "info".into())), |world| {
            no_more_debug(world, &world.gateway)
        }),
        showing(gateway(Edit::Set("log.format", "json".into())), |world| {
            let from = settled(&world.gateway);
            a_fresh_connection_comes_up(world)?;
            let log = world.gateway.log();
            let mut lines = log[from..].lines().filter(|line| !line.is_empty());
            let json = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
            ensure!(lines.clone().count() > 0, "nothing was logged");
            ensure!(lines.all(json), "not JSON: {}", &log[from..]);
            Ok(())
        }),
        showing(cloud(Edit::Set("log.level", "info".into())), |world| {
            no_more_debug(world, &world.cloud)
        }),
        showing(cloud(Edit::Set("log.file", MOVED_LOG.into())), |world| {
            the_cloud_logs_to(world, MOVED_LOG)
        }),
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

pub(super) fn gateway(edit: Edit) -> Reload {
    Reload { side: Side::Gateway, edit, outcome: Outcome::Taken, shows: |_| Ok(()) }
}

pub(super) fn cloud(edit: Edit) -> Reload {
    Reload { side: Side::Cloud, ..gateway(edit) }
}

pub(super) fn refused(side: Side, edit: Edit, outcome: Outcome) -> Reload {
    Reload { side, outcome, ..gateway(edit) }
}

pub(super) fn showing(reload: Reload, shows: fn(&World) -> Result<()>) -> Reload {
    Reload { shows, ..reload }
}

/// The operator's reference, whose table of section 9 says of each key whether it is live.
const REFERENCE: &str = include_str!("../../../../docs/operations.md");

#[test]
fn every_live_key_of_the_reference_has_its_kind() {
    let (_, table) = REFERENCE.split_once("## 9. Reloading").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let rows = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let live = rows.filter(|row| row[2].starts_with("live"));
    let keys = live.flat_map(|row| row[1].split('`').skip(1).step_by(2));
    let mut missing: Vec<&str> = keys.collect();
    assert!(missing.len() > 30, "{missing:?}");
    let kinds: Vec<Reload> = [all(), without_load(), rail::all()].into_iter().flatten().collect();
    for kind in kinds.iter().filter(|kind| matches!(kind.outcome, Outcome::Taken)) {
        let edited = documented(&kind.edit);
        missing.retain(|key| !edited.iter().any(|name| name == key));
    }
    assert!(missing.is_empty(), "no kind of reload has {missing:?}");
    assert!(kinds.iter().any(|kind| matches!(kind.edit, Edit::Swapped)), "no other order");
}

/// The keys of an edit by their names in the reference.
fn documented(edit: &Edit) -> Vec<String> {
    let plain = |key: String| match key.split('.').collect::<Vec<_>>().as_slice() {
        ["carrier", _] => "carrier.name".to_owned(),
        ["carrier", _, key] => format!("carrier.{key}"),
        ["carrier_congestion", _] => "carrier_congestion".to_owned(),
        _ => key.clone(),
    };
    match edit {
        Edit::Reissued => ["tls.certificate", "tls.key"].map(str::to_owned).to_vec(),
        other => other.keys().into_iter().map(plain).collect(),
    }
}
