//! What an operator gets wrong, and disks that are full.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use polyrail_interop::configuration::Configuration;
use polyrail_interop::process::Program;
use polyrail_interop::scratch;
use polyrail_interop::world::{Plan, Side};

use crate::scenario;

const BOUND: Duration = Duration::from_secs(20);

#[test]
fn an_unknown_key_is_named_with_file_and_line() -> Result<()> {
    scenario(&Plan::twins(), BOUND, |world| {
        let file = world.web.add(3_000_000, 10)?;
        let healthy = world.download(&file).start(&world.lab.passenger)?;
        for (side, key) in [(Side::Gateway, "session.lingers"), (Side::Cloud, "acess.allow")] {
            let path = world.lab.folder().join("unknown.toml");
            let mut configuration = Configuration::cloud(world.keys.folder());
            if side == Side::Gateway {
                configuration = Configuration::gateway(world.keys.folder(), &["alpha".into()]);
            }
            configuration.set(key, "1s");
            configuration.write(&path)?;
            let program = match side {
                Side::Gateway => "polyrail-gateway",
                Side::Cloud => "polyrail-cloud",
            };
            let mut process =
                Program::new(program, world.programs.path(program), world.lab.log("unknown"))
                    .arg("--config")
                    .arg(&path)
                    .start(&world.lab.onboard)?;
            let status = process.wait(Duration::from_secs(5))?;
            ensure!(!status.success(), "{program} took an unknown key");
            let log = process.log();
            println!("{}", log.trim());
            let word = key.rsplit('.').next().context("key")?;
            let word = if side == Side::Cloud { "acess" } else { word };
            ensure!(log.contains(word), "{program} does not name {word}:\n{log}");
            let text = std::fs::read_to_string(&path)?;
            let line = 1 + text.lines().position(|line| line.contains(word)).context("the line")?;
            let place = format!("unknown.toml:{line}:");
            ensure!(log.contains(&place), "{program} does not name {place}:\n{log}");
        }
        healthy.verify(&file)?;
        Ok(())
    })
}

#[test]
fn a_full_disk_for_logs_stops_no_flow() -> Result<()> {
    // Each daemon logs to a file system of 64 KiB, which becomes full while a flow is open.
    scenario(&Plan::twins(), BOUND, |world| {
        let disk = world.lab.folder().join("disk");
        std::fs::create_dir(&disk)?;
        scratch::mount_tmpfs(&disk, "64k")?;
        for (side, name) in [(Side::Cloud, "cloud"), (Side::Gateway, "gateway")] {
            let path = side.configuration(&world.lab);
            let text = std::fs::read_to_string(&path)?;
            let log = disk.join(format!("{name}.log"));
            let text = text.replace("[log]", &format!("[log]\nfile = \"{}\"", log.display()));
            std::fs::write(&path, text)?;
        }
        world.restart_cloud()?;
        world.restart_gateway()?;
        world.wait_until_up()?;
        let file = world.web.add(10_000_000, 11)?;
        let mut healthy = world.download(&file).start(&world.lab.passenger)?;
        healthy.wait_for_bytes(500_000)?;
        let filler = std::fs::write(disk.join("filler"), vec![0; 128 * 1024]);
        ensure!(filler.is_err(), "the disk is not full");
        for daemon in [&world.cloud, &world.gateway] {
            // Each has something to log now, more than the last page of its file holds.
            for _ in 0..100 {
                daemon.signal(Signal::SIGHUP)?;
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        healthy.verify(&file)?;
        for daemon in [&mut world.cloud, &mut world.gateway] {
            // Standard error, which the harness keeps, is the side that can still be heard.
            daemon.wait_for_log("No space left", Duration::from_secs(2))?;
        }
        Ok(())
    })
}
