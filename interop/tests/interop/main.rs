//! The real binaries end to end, one scenario a function, several side by side.
//!
//! Each scenario defines its links, its faults and its time limit. It runs in new namespaces on a
//! thread of its own. If it fails, it prints the ends of all logs. Scenarios mostly wait, so they
//! run in parallel; those that measure time run [`alone`].

mod applications;
mod clouds;
mod dark;
mod demo;
mod dns;
mod download;
mod flapping;
mod guest;
mod hostile;
mod linkdb;
mod matrix;
mod metrics;
mod refusals;
mod reload;
mod restart;
mod semantics;
mod set_ups;
mod speedtest;
mod udp;
mod wishes;
mod workers;

use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use polyrail_interop::lab::{Side, in_thread};
use polyrail_interop::privilege;
use polyrail_interop::world::{Plan, World};

/// Read-locked by scenarios that run in parallel, write-locked by those that run alone.
static MACHINE: RwLock<()> = RwLock::new(());

/// Runs one scenario in a world of its own.
fn scenario<F>(plan: &Plan, bound: Duration, work: F) -> Result<()>
where
    F: FnOnce(&mut World) -> Result<()> + Send,
{
    beside_others(|| in_world(plan, bound, work))
}

/// Runs a test that needs namespaces while other scenarios run.
fn beside_others<F>(work: F) -> Result<()>
where
    F: FnOnce() -> Result<()> + Send,
{
    if !namespaces_or_skip()? {
        return Ok(());
    }
    let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    in_thread(work)
}

/// Runs one scenario [in both modes](both_modes) while other scenarios run.
fn in_both_modes<F>(plan: &Plan, bound: Duration, work: F) -> Result<()>
where
    F: Fn(&mut World) -> Result<()> + Sync,
{
    beside_others(|| both_modes(plan, bound, &work))
}

/// Runs one scenario in both modes at once, on threads of their own.
fn both_modes<F>(plan: &Plan, bound: Duration, work: F) -> Result<()>
where
    F: Fn(&mut World) -> Result<()> + Sync,
{
    let in_mode = |mode: &str| {
        let plan = plan.clone().gateway("mode", mode).cloud("mode", mode);
        let checked = |world: &mut World| {
            let paths = world.paths(Side::Gateway)?;
            ensure!(paths.iter().all(|path| path["mode"] == mode), "{paths:?}");
            work(world)
        };
        in_world(&plan, bound, checked).with_context(|| format!("mode {mode}"))
    };
    std::thread::scope(|scope| {
        let modes = ["quic", "tls"].map(|mode| scope.spawn(move || in_mode(mode)));
        let ended = modes.map(|mode| mode.join().map_err(|_| anyhow!("a mode panicked"))?);
        ended.into_iter().collect()
    })
}

/// Runs a test that needs namespaces while no other scenario runs.
fn alone<F>(work: F) -> Result<()>
where
    F: FnOnce() -> Result<()> + Send,
{
    if !namespaces_or_skip()? {
        return Ok(());
    }
    let _machine = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
    in_thread(work)
}

fn namespaces_or_skip() -> Result<bool> {
    privilege::namespaces_or_skip(std::thread::current().name().unwrap_or("scenario"))
}

fn in_world<F>(plan: &Plan, bound: Duration, work: F) -> Result<()>
where
    F: FnOnce(&mut World) -> Result<()>,
{
    let mut world = World::start(plan).context("setting up")?;
    let started = Instant::now();
    let outcome = work(&mut world).and_then(|()| {
        let took = started.elapsed();
        ensure!(took <= bound, "took {took:?}, bound {bound:?}");
        for daemon in [&mut world.gateway, &mut world.cloud] {
            ensure!(daemon.exit()?.is_none(), "the {} has ended", daemon.name());
        }
        Ok(())
    });
    outcome.inspect_err(|_| println!("{}", world.tails()))
}
