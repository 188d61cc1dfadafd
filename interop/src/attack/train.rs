//! A second gateway of the operator, which shares the cloud with the first one.

use anyhow::Result;

use crate::addresses::{Family, GATEWAY};
use crate::configuration::{Configuration, strings};
use crate::process::{Process, Program};
use crate::world::World;

use super::probe::Way;

/// A second gateway, whose passengers use its SOCKS5 server.
#[derive(Debug)]
pub struct SecondTrain {
    /// Dies with this value.
    _process: Process,
    /// How its passengers reach servers.
    pub way: Way,
}

impl SecondTrain {
    /// Starts it over the same carriers, and waits until a flow succeeds.
    pub fn start(world: &mut World) -> Result<Self> {
        const NAME: &str = "train-2";
        world.keys.reissue(NAME, "gateway")?;
        let names: Vec<String> =
            world.carriers.iter().map(|carrier| carrier.name().to_owned()).collect();
        let mut file = Configuration::gateway(world.keys.folder(), &names);
        let proxy = GATEWAY.at(Family::V4, PORT);
        file.set("tls.certificate", key_file(world, NAME, "crt"));
        file.set("tls.key", key_file(world, NAME, "key"));
        file.set("socks5.listen", strings([proxy]));
        file.set("socks5.reply", "dialed");
        let folder = world.lab.folder();
        file.set("admin.socket", folder.join("train-2.sock").display().to_string());
        for key in ["mode", "session"] {
            if let Some(value) = world.configurations[0].get(key) {
                file.set(key, value.clone());
            }
        }
        file.remove("intercept");
        file.remove("dns");
        let path = folder.join("train-2.toml");
        file.write(&path)?;
        let program = world.programs.path("polyrail-gateway");
        let mut process = Program::new("second gateway", program, world.lab.log("train-2"))
            .arg("--config")
            .arg(&path)
            .start(&world.lab.gateway)?;
        process.wait_for_log("carrier up", std::time::Duration::from_secs(15))?;
        Ok(Self { _process: process, way: Way::Proxy(proxy) })
    }
}

fn key_file(world: &World, name: &str, end: &str) -> String {
    world.keys.folder().join(format!("{name}.{end}")).display().to_string()
}

/// Its SOCKS5 port.
const PORT: u16 = 1081;
