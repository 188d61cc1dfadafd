//! The emulator in a process of its own: this program once more, with other arguments.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use polyrail_emulator::driver::{self, Choice, Driver, Options};
use polyrail_emulator::namespace::{Namespace, die_with_parent};
use polyrail_emulator::scenario::{End, LinkScenario, Scenario};
use polyrail_emulator::trials::trials;

use super::START_LIMIT;

/// A running emulator; dropped, it ends.
pub(super) struct Emulator {
    child: Child,
    epoch: Instant,
    control: PathBuf,
}

impl Emulator {
    /// Links between two namespaces, each a trial's name, `=` and a seed.
    pub(super) fn start(links: &[String], near: &Namespace, far: &Namespace) -> Result<Self> {
        let folder = std::env::temp_dir();
        let control = folder.join(format!("polyrail-kernel-tcp.{}", std::process::id()));
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--emulate").arg(links.join(",")).arg("--near").arg(near.path());
        command.arg("--far").arg(far.path()).arg("--control").arg(&control);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        die_with_parent(&mut command);
        let mut child = command.spawn().context("starting the emulator")?;
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        let begun = Instant::now();
        let ready = lines.next().context("the emulator ended")??;
        let epoch = Instant::now();
        ensure!(ready.contains("\"ready\":true"), "the emulator says {ready}");
        ensure!(begun.elapsed() < START_LIMIT, "the emulator was slow to start");
        // What it prints at its end must not block it.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { child, epoch, control })
    }

    /// When its schedules began, within a millisecond or two.
    pub(super) fn epoch(&self) -> Instant {
        self.epoch
    }

    pub(super) fn control(&self) -> &Path {
        &self.control
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // Both fail only when it is already gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.control);
    }
}

/// The child's part: carries packets until it is killed.
///
/// # Errors
/// An unknown trial, or the system refuses devices.
pub fn emulate(links: &str, near: &Path, far: &Path, control: &Path) -> Result<()> {
    let trials = trials()?;
    let links = links.split(',').enumerate().map(|(place, link)| {
        let (name, seed) = link.split_once('=').context("a link without a seed")?;
        let trial = trials.iter().find(|trial| trial.name == name);
        let [up, down] = trial.with_context(|| format!("no trial {name}"))?.links.clone();
        let seed: u64 = seed.parse()?;
        let [near, far] = addresses(place).map(|address| format!("{address}/30"));
        let end = |interface: String, address: &str| -> Result<End> {
            Ok(End { interface, addresses: vec![address.parse()?], namespace: None })
        };
        let near = end(format!("near{place}"), &near)?;
        let far = end(format!("far{place}"), &far)?;
        let name = format!("link{place}");
        Ok((seed, LinkScenario { name, mtu: 1_500, near, far, nat: false, up, down }))
    });
    let links = links.collect::<Result<Vec<_>>>()?;
    let seed = links.iter().fold(1_u64, |all, (seed, _)| all.wrapping_mul(31).wrapping_add(*seed));
    let links = links.into_iter().map(|(_, link)| link).collect();
    let scenario = Scenario { seed, duration: None, near: None, far: None, links };
    let options = Options {
        driver: Choice::Only(Driver::Tun),
        near: Some(near.to_owned()),
        far: Some(far.to_owned()),
        control: Some(control.to_owned()),
        report: None,
        core: None,
        realtime: true,
    };
    Ok(driver::run(&scenario, &options)?)
}

/// Of the client and the server of a link.
pub(super) fn addresses(place: usize) -> [Ipv4Addr; 2] {
    let third = u8::try_from(place).unwrap_or(u8::MAX);
    [1, 2].map(|host| Ipv4Addr::new(10, 80, third, host))
}
