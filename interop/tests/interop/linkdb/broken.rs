//! A gateway with an unusable database: users notice nothing, and the operator sees one error.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polyrail_interop::lab::Side;
use polyrail_interop::linkdb::Announcer;
use polyrail_interop::linkdb::Rail;
use polyrail_interop::scratch;
use polyrail_interop::web::WebFile;
use polyrail_interop::world::{Plan, World};
use serde_json::Value;

use super::{count, events, joins, wait_for_linkdb};
use crate::scenario;

const BOUND: Duration = Duration::from_secs(55);
const SOON: Duration = Duration::from_secs(10);
/// The gateway retries a failed database after 10 s.
const TRIED_AGAIN: Duration = Duration::from_secs(12);

#[test]
fn unusable_database_affects_no_flow() -> Result<()> {
    scenario(&Plan::twins().rail(Rail::default()), BOUND, |world| {
        let folder = world.lab.folder().join("databases");
        fs::create_dir(&folder)?;
        let file = world.web.add(500_000, 24)?;
        another_file(world, &folder, &file).context("a file that is something else")?;
        full_disk(world, &folder, &file).context("a full disk")
    })
}

/// Restarts the gateway with a database and checks that flows work. Returns the offset of its log.
fn run_on(world: &mut World, path: &Path, file: &WebFile) -> Result<usize> {
    let mut configuration = world.configurations[0].clone();
    configuration.set("linkdb.path", path.display().to_string());
    configuration.write(&Side::Gateway.configuration(&world.lab))?;
    let from = world.gateway.log().len();
    world.restart_gateway()?;
    world.wait_until_up()?;
    world.download(file).verify(&world.lab.passenger, file)?;
    Ok(from)
}

/// The gateway reports why it has no database, in its status and once in its log.
fn must_say(world: &World, from: usize, path: &Path, words: &str) -> Result<()> {
    let wrong = |state: &Value| state.pointer("/store/error").is_some_and(Value::is_string);
    let state = wait_for_linkdb(world, Side::Gateway, "error", SOON, wrong)?;
    ensure!(state.pointer("/store/open") == Some(&Value::Bool(false)), "{state}");
    let error = state.pointer("/store/error").and_then(Value::as_str).unwrap_or_default();
    println!("{error}");
    ensure!(error.contains(words), "no `{words}` in {error}");
    ensure!(error.contains(&path.display().to_string()), "no path in {error}");
    let shown = world.ask(Side::Gateway, "linkdb status")?;
    ensure!(shown.contains(error), "the command does not show it:\n{shown}");
    must_be_logged_once(world, from, words)
}

fn must_be_logged_once(world: &World, from: usize, words: &str) -> Result<()> {
    let log = world.gateway.log();
    let errors = log[from..].lines().filter(|line| line.contains(" ERROR "));
    let errors: Vec<&str> = errors.collect();
    ensure!(errors.len() == 1 && errors[0].contains(words), "not once: {errors:#?}");
    Ok(())
}

fn another_file(world: &mut World, folder: &Path, file: &WebFile) -> Result<()> {
    let path = folder.join("garbage.redb");
    let garbage: Vec<u8> = (0..100_000u32).map(|byte| (byte * 31 % 251) as u8).collect();
    fs::write(&path, &garbage)?;
    let from = run_on(world, &path, file)?;
    must_say(world, from, &path, "is not a LinkDB")?;
    ensure!(fs::read(&path)? == garbage, "it was changed");
    Ok(())
}

/// Records are queued until the disk has room again.
fn full_disk(world: &mut World, folder: &Path, file: &WebFile) -> Result<()> {
    let disk = folder.join("disk");
    fs::create_dir(&disk)?;
    scratch::mount_tmpfs(&disk, "8m")?;
    let filler = disk.join("filler");
    ensure!(fs::write(&filler, vec![0; 16 << 20]).is_err(), "the disk is not full");
    let path = disk.join("linkdb.redb");
    let from = run_on(world, &path, file)?;
    must_say(world, from, &path, "no space is left")?;
    change_cells(&world.train.clone().context("no train")?);
    let waits = |state: &Value| state.pointer("/store/waiting") == Some(&Value::from(CELLS - 1));
    wait_for_linkdb(world, Side::Gateway, "handovers that wait", SOON, waits)?;
    std::thread::sleep(TRIED_AGAIN);
    must_be_logged_once(world, from, "no space is left")?;
    world.download(file).verify(&world.lab.passenger, file)?;
    fs::remove_file(&filler)?;
    let written = |state: &Value| events(state) == CELLS - 1;
    let state = wait_for_linkdb(world, Side::Gateway, "handovers", TRIED_AGAIN, written)?;
    ensure!(state.pointer("/store/error") == Some(&Value::Null), "{state}");
    ensure!(count(&state["store"], "lost") == 0, "{state}");
    world.gateway.wait_for_log("LinkDB is open again", SOON)
}

/// The number of cells that a train passes within some seconds.
const CELLS: u64 = 6;

fn change_cells(train: &Announcer) {
    for cell in 1..=CELLS {
        train.say(&joins(cell, cell as f64 * 24.0));
        std::thread::sleep(Duration::from_millis(300));
    }
}
