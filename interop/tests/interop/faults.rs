//! Mistakes of an operator.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polyrail_interop::configuration::Configuration;
use polyrail_interop::process::Program;
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
