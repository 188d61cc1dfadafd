//! Further gateways of the operator, which share the cloud with the first one.

use std::path::PathBuf;

use anyhow::Result;

use crate::addresses::{Family, GATEWAY};
use crate::configuration::{Configuration, strings};
use crate::lab::Side;
use crate::process::Process;
use crate::world::{World, start_daemon};

use super::probe::Way;

/// A further gateway, whose passengers use its SOCKS5 server.
#[derive(Debug)]
pub struct OtherTrain {
    /// The daemon, which dies with this value.
    pub process: Process,
    /// How its passengers reach servers.
    pub way: Way,
    /// Its admin socket.
    pub socket: PathBuf,
}

impl OtherTrain {
    /// Starts the gateway `train-NUMBER` over the same carriers, and waits until one is up.
    /// `database` is the file of its LinkDB.
    pub fn start(world: &World, number: u16, database: Option<&PathBuf>) -> Result<Self> {
        let name = format!("train-{number}");
        world.keys.reissue(&name, "gateway")?;
        let names: Vec<String> =
            world.carriers.iter().map(|carrier| carrier.name().to_owned()).collect();
        let mut file = Configuration::gateway(world.keys.folder(), &names);
        let proxy = GATEWAY.at(Family::V4, PORT + number);
        file.set_identity(world.keys.folder(), &name);
        file.set("socks5.listen", strings([proxy]));
        file.set("socks5.reply", "dialed");
        let folder = world.lab.folder();
        let socket = folder.join(format!("{name}.sock"));
        file.set("admin.socket", socket.display().to_string());
        if let Some(database) = database {
            file.set("linkdb.path", database.display().to_string());
        }
        for key in ["mode", "session"] {
            if let Some(value) = world.configurations[0].get(key) {
                file.set(key, value.clone());
            }
        }
        file.remove("intercept");
        file.remove("dns");
        file.write(&folder.join(format!("{name}.toml")))?;
        let mut process = start_daemon(&world.lab, &world.programs, Side::Gateway, &name)?;
        process.wait_for_log("carrier up", std::time::Duration::from_secs(15))?;
        Ok(Self { process, way: Way::Proxy(proxy), socket })
    }
}

/// The SOCKS5 port of the gateway with the number 0.
const PORT: u16 = 1_080;
