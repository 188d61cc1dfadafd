//! What shows that a reload did what it says, beside what the admin socket tells of the file.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use polyrail_interop::addresses::{
    self, CLOUD_PORT, Family, NOBODY, RESOLVER, SERVER, SERVER_NAME_V4, WEB_PORT,
};
use polyrail_interop::client::{self, Target};
use polyrail_interop::dns;
use polyrail_interop::process::Process;
use polyrail_interop::world::{Side, World};
use serde_json::Value;

use super::SOON;

/// An address where nobody is fails by itself after 3 s, when its neighbour does not answer.
const BEFORE_THE_KERNEL: Duration = Duration::from_millis(2500);
/// Time for lines that were on their way into the log.
const SETTLING: Duration = Duration::from_millis(200);
const POLL: Duration = Duration::from_millis(20);
/// More flows than any reload here allows.
const FLOWS: usize = 6;

pub(super) fn replies(world: &World, to: SocketAddr, expected: u8) -> Result<()> {
    let (_, code) = client::socks5(&world.lab.passenger, world.proxy(), &Target::Address(to))?;
    ensure!(code == expected, "SOCKS5 reply {code} for {to}, expected {expected}");
    Ok(())
}

pub(super) fn nobody_is_given_up_early(world: &World) -> Result<()> {
    let started = Instant::now();
    let to = Target::Address(NOBODY.at(Family::V6, 80));
    let (_, code) = client::socks5(&world.lab.passenger, world.proxy(), &to)?;
    let took = started.elapsed();
    ensure!(code != 0, "nobody answered");
    ensure!(took < BEFORE_THE_KERNEL, "given up after {took:?}");
    Ok(())
}

pub(super) fn the_other_resolver_is_asked(world: &World) -> Result<()> {
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
pub(super) fn a_fresh_connection_comes_up(world: &World) -> Result<()> {
    let restarts = |path: &Value| path["counters"]["restarts"].as_u64();
    let paths = world.paths(Side::Gateway)?;
    let alpha = paths.iter().find(|path| path["name"] == "alpha");
    let before = alpha.and_then(restarts).context("no path alpha")?;
    world.ask(Side::Gateway, "path restart alpha")?;
    world.wait_for_path("alpha", SOON, |path| {
        path["state"] == "up" && restarts(path).is_some_and(|count| count > before)
    })
}

/// Where a daemon's log goes on once all lines of before are in it.
pub(super) fn settled(daemon: &Process) -> usize {
    std::thread::sleep(SETTLING);
    daemon.log().len()
}

/// Alpha's connection leaves by the interface of this carrier, and from its address of this family.
pub(super) fn alpha_leaves_by(world: &World, carrier: u8, families: &[Family]) -> Result<()> {
    let wanted = families.iter().map(|family| addresses::carrier_gateway(carrier).of(*family));
    let wanted: Vec<IpAddr> = wanted.collect();
    let local = |path: &Value| path["local_address"].as_str()?.parse::<SocketAddr>().ok();
    world
        .wait_for_path("alpha", SOON, |path| {
            let from = local(path).map(|address| address.ip().to_canonical());
            path["state"] == "up" && from.is_some_and(|from| wanted.contains(&from))
        })
        .with_context(|| format!("alpha does not leave from any of {wanted:?}"))
}

/// A file of the folder beside the configuration has something in it.
pub(super) fn a_file_grows_in(world: &World, folder: &str) -> Result<()> {
    let folder = world.lab.folder().join(folder);
    soon(|| {
        let files = std::fs::read_dir(&folder).with_context(|| format!("{}", folder.display()))?;
        let mut lengths = files.map(|file| Ok(file?.metadata()?.len()));
        let lengths = lengths.by_ref().collect::<Result<Vec<u64>>>()?;
        ensure!(lengths.iter().any(|length| *length > 0), "{lengths:?} bytes in its files");
        Ok(())
    })
}

/// All connections over TCP along this carrier run with this congestion control, as the kernel of
/// that side tells.
pub(super) fn carrier_runs(world: &World, side: Side, carrier: u8, name: &str) -> Result<()> {
    let (namespace, port) = match side {
        Side::Gateway => (&world.lab.gateway, "dport"),
        Side::Cloud => (&world.lab.cloud, "sport"),
    };
    let near = addresses::carrier_gateway(carrier);
    let ends = [near.v4.to_string(), near.v6.to_string()];
    soon(|| {
        let all =
            namespace.tool("ss", &format!("-HOtin state established {port} = :{CLOUD_PORT}"))?;
        let mine: Vec<&str> =
            all.lines().filter(|line| ends.iter().any(|end| line.contains(end))).collect();
        let has_it = |line: &&str| line.split_whitespace().any(|word| word == name);
        ensure!(!mine.is_empty(), "no connection over TCP along carrier {carrier}:\n{all}");
        ensure!(mine.iter().all(has_it), "one runs without {name}: {mine:#?}");
        Ok(())
    })
}

/// Nothing urgent happens, and of what happens nothing is logged at debug any more.
pub(super) fn no_more_debug(world: &World, daemon: &Process) -> Result<()> {
    let from = settled(daemon);
    a_fresh_connection_comes_up(world)?;
    let log = daemon.log();
    ensure!(log[..from].contains(" DEBUG "), "never a line at debug");
    ensure!(!log[from..].contains(" DEBUG "), "still at debug: {}", &log[from..]);
    Ok(())
}

/// The cloud logs to this file beside its configuration, and no longer where it did.
pub(super) fn the_cloud_logs_to(world: &World, file: &str) -> Result<()> {
    let from = settled(&world.cloud);
    a_fresh_connection_comes_up(world)?;
    let file = world.lab.folder().join(file);
    soon(|| contains(&file, "path up"))?;
    let log = world.cloud.log();
    ensure!(log[from..].is_empty(), "logged where it did: {}", &log[from..]);
    Ok(())
}

/// Destinations of one family are reached, those of the other are not.
pub(super) fn only_this_family_is_reached(world: &World, family: Family, port: u16) -> Result<()> {
    for each in Family::BOTH {
        let to = SERVER.at(each, port);
        let target = Target::Address(to);
        let (_, code) = client::socks5(&world.lab.passenger, world.proxy(), &target)?;
        ensure!((code == 0) == (each == family), "SOCKS5 reply {code} for {to}");
    }
    Ok(())
}

/// No more flows are opened at once.
pub(super) fn flows_at_once(world: &World, most: usize) -> Result<()> {
    let target = Target::Address(SERVER.at(Family::V4, WEB_PORT));
    soon(|| {
        let open = || client::socks5(&world.lab.passenger, world.proxy(), &target);
        let flows = (0..FLOWS).map(|_| open()).collect::<Result<Vec<_>>>()?;
        let opened = flows.iter().filter(|(_, code)| *code == 0).count();
        ensure!(opened == most, "{opened} of {FLOWS} flows were opened, not {most}");
        Ok(())
    })
}

/// Tries until it holds, or for [`SOON`].
pub(super) fn soon(holds: impl Fn() -> Result<()>) -> Result<()> {
    let started = Instant::now();
    loop {
        match holds() {
            Err(error) if started.elapsed() > SOON => bail!("after {SOON:?}: {error:#}"),
            Err(_) => std::thread::sleep(POLL),
            Ok(()) => return Ok(()),
        }
    }
}

fn contains(file: &Path, words: &str) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    ensure!(text.contains(words), "no `{words}` in {text}");
    Ok(())
}
