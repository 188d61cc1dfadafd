//! Rows in which one of the daemons is that of an earlier commit.
//!
//! A row is a download with faults as in the other rows, then an upload, then handovers of LinkDB.
//! Either the cloud receives the handovers and no daemon says anything about versions, or the newer
//! daemon says once that the older one cannot exchange them.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::addresses::{Family, SERVER};
use crate::admin;
use crate::carrier;
use crate::client;
use crate::datagrams;
use crate::exchange::{Ending, Exchange, Verdicts};
use crate::lab::Side;
use crate::linkdb::Rail;
use crate::world::World;

use super::parallel::run_each;
use super::row::{self, RowResult};
use super::target::{IN_USE_BYTES, RATE_MBIT_S};
use super::{CloudMode, Fault, GatewayMode, Row};

/// The port of the server that takes the upload.
const PORT: u16 = 8081;
/// The upload: two seconds of both carriers.
const UPLOAD_BYTES: u64 = 5_000_000;
/// How long the upload may take.
const UPLOAD_LIMIT: Duration = Duration::from_secs(30);
/// How long the echo of a datagram may take.
const DATAGRAM_PATIENCE: Duration = Duration::from_secs(3);
/// The interval between the train's changes of cell.
const CELL_TIME: Duration = Duration::from_millis(300);
/// How long handovers, or the line about the missing feature, may take.
const LINKDB_LIMIT: Duration = Duration::from_secs(20);
/// How long the daemons may repeat the line. Messages are repeated after 3 s.
const SETTLE_TIME: Duration = Duration::from_secs(4);
/// Lines of the levels WARN and ERROR that a daemon may write in a row.
const WARNINGS_MAX: usize = 10;
/// Names the missing feature.
const LACKS: &str = "LinkDB exchanges nothing with it";

/// A row with a daemon of an earlier commit.
#[derive(Clone, Debug)]
pub struct SkewRow {
    row: Row,
    previous: Side,
    /// Both versions have the same messages, so nothing may be missing.
    pub same_wire: bool,
}

/// The rows: each side, mode and family, or two that have both sides, tunnel modes and families.
pub fn rows(all: bool) -> Vec<SkewRow> {
    let row = |previous, gateway, cloud, family| SkewRow {
        row: Row { gateway, cloud, family, faults: FAULTS.to_vec() },
        previous,
        same_wire: false,
    };
    let (tls, quic) = ((GatewayMode::Tls, CloudMode::Tls), (GatewayMode::Quic, CloudMode::Quic));
    if !all {
        return vec![
            row(Side::Gateway, quic.0, quic.1, Family::V6),
            row(Side::Cloud, tls.0, tls.1, Family::V4),
        ];
    }
    let modes = [tls, quic, (GatewayMode::Auto, CloudMode::Auto)];
    let sides = [Side::Gateway, Side::Cloud].into_iter();
    let pairs = sides.flat_map(|side| modes.map(|(gateway, cloud)| (side, gateway, cloud)));
    pairs
        .flat_map(|(side, gateway, cloud)| {
            Family::BOTH.map(|family| row(side, gateway, cloud, family))
        })
        .collect()
}

/// One fault of each carrier. Paths join the session again after it.
const FAULTS: [Fault; 2] = [Fault::AddressChange, Fault::BlackoutDrop(3)];

/// Runs rows, `together` at a time.
pub fn run_all(
    rows: &[SkewRow],
    tolerance: u32,
    together: usize,
    logs: Option<&Path>,
) -> Vec<RowResult> {
    let run = |row: &SkewRow, logs: Option<&Path>| {
        row::on_thread(row.to_string(), |outcome| row.run(tolerance, logs, outcome))
    };
    run_each(rows, together, logs.map(|folder| folder.join("skew")).as_deref(), run)
}

impl SkewRow {
    fn run(&self, tolerance: u32, logs: Option<&Path>, outcome: &mut RowResult) -> Result<()> {
        let row = &self.row;
        let victims = row.victims().context("a fault that makes sense for no carrier")?;
        let plan = row::plan(row, &victims, RATE_MBIT_S);
        let plan = plan.rail(Rail::default()).previous(self.previous);
        let mut world = World::start_cold(&plan).context("setting up")?;
        let result = row::wait_for_carriers(&mut world, row, &victims)
            .and_then(|()| row::transfer(&mut world, row, &victims, tolerance, outcome))
            .and_then(|_| upload(&world, row.family).context("the upload"))
            .and_then(|()| self.exchange_datagrams(&world))
            .and_then(|()| self.exchange_handovers(&mut world));
        if let Some(folder) = logs {
            row::keep_logs(&world, folder)?;
        }
        result.inspect_err(|_| println!("{}", world.tails()))
    }

    /// A passenger's datagrams cross, or a newer gateway rejects them and says why.
    fn exchange_datagrams(&self, world: &World) -> Result<()> {
        datagrams::serve_echo(&world.lab.server)?;
        let server = SERVER.at(self.row.family, datagrams::ECHO_PORT);
        let socket = datagrams::connected(&world.lab.passenger, server)?;
        // A rejection is an error of the socket.
        let crosses = datagrams::echoes(&socket, 100, DATAGRAM_PATIENCE).unwrap_or(false);
        let said = lines_with(&world.gateway.log(), "carries no UDP");
        let wanted = usize::from(!crosses && self.previous == Side::Cloud);
        println!("{self}: datagrams cross: {crosses}, lines {said}");
        ensure!(said == wanted, "{said} lines about datagrams, wanted {wanted}");
        ensure!(!self.same_wire || crosses, "the same frames, and no datagram crosses");
        Ok(())
    }

    /// The train records handovers, and the daemons exchange them or say why not.
    fn exchange_handovers(&self, world: &mut World) -> Result<()> {
        let train = world.train.clone().context("no train")?;
        let started = Instant::now();
        let lines = |world: &World, side| lines_with(&process(world, side).log(), LACKS);
        for cell in 1.. {
            train.say(&joins(cell));
            let [recorded, received] = handovers(world)?;
            let said = lines(world, Side::Gateway) + lines(world, Side::Cloud);
            if recorded > 0 && (received > 0 || said > 0) {
                break;
            }
            ensure!(
                started.elapsed() < LINKDB_LIMIT,
                "{recorded} handovers recorded, {received} received, and no reason in a log"
            );
            std::thread::sleep(CELL_TIME);
        }
        std::thread::sleep(SETTLE_TIME);
        let [recorded, received] = handovers(world)?;
        let newer = if self.previous == Side::Gateway { Side::Cloud } else { Side::Gateway };
        let said = [self.previous, newer].map(|side| lines(world, side));
        let wanted = [0, usize::from(received == 0)];
        println!("{self}: {recorded} recorded, {received} received, lines {said:?}");
        ensure!(said == wanted, "{said:?} lines `{LACKS}`, wanted {wanted:?}; {received} received");
        ensure!(!self.same_wire || received > 0, "the same messages, and no handover crosses");
        for daemon in [&mut world.gateway, &mut world.cloud] {
            let name = daemon.name().to_owned();
            ensure!(daemon.exit()?.is_none(), "the {name} has ended");
            let log = daemon.log();
            let warnings = lines_with(&log, " WARN ") + lines_with(&log, " ERROR ");
            ensure!(warnings <= WARNINGS_MAX, "{warnings} warnings of the {name}");
            ensure!(!log.contains("panicked"), "a panic of the {name}");
        }
        Ok(())
    }
}

impl fmt::Display for SkewRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, skew: previous {}", self.row, self.previous.name())
    }
}

/// An upload whose bytes are checked. It uses both carriers.
fn upload(world: &World, family: Family) -> Result<()> {
    let server = SERVER.at(family, PORT);
    let verdicts = Verdicts::default();
    verdicts.serve(&world.lab.server, server)?;
    let exchange = Exchange { seed: 7, up: UPLOAD_BYTES, down: 1000, ending: Ending::ClientFirst };
    let before = carrier::counters(&world.lab)?;
    let (stream, code) = client::socks5(&world.lab.passenger, world.proxy(), server)?;
    ensure!(code == 0, "SOCKS5 reply {code}");
    stream.set_write_timeout(Some(UPLOAD_LIMIT))?;
    exchange.perform(stream)?;
    verdicts.verdict(&exchange, UPLOAD_LIMIT)?;
    for (before, after) in before.iter().zip(carrier::counters(&world.lab)?) {
        let bytes = after.up_bytes.saturating_sub(before.up_bytes);
        ensure!(bytes >= IN_USE_BYTES, "{} carried {bytes} bytes of it", after.carrier);
    }
    Ok(())
}

/// The handovers that the gateway recorded, and those that the cloud received.
fn handovers(world: &World) -> Result<[u64; 2]> {
    // The command refuses the state of another version's daemon.
    let count = |side: Side, key: &str| -> Result<u64> {
        let state = admin::get(&side.admin_socket(&world.lab), "/v1/linkdb")?;
        state[key].as_u64().with_context(|| format!("no `{key}`: {state}"))
    };
    Ok([count(Side::Gateway, "recorded")?, count(Side::Cloud, "received")?])
}

/// Telemetry of a train whose modem of the first carrier has just joined a cell.
fn joins(cell: u64) -> String {
    let line: Value = json!({
        "metres": cell as f64 * 24.0,
        "metres_per_second": 80.0,
        "carriers": [{ "carrier": row::NAMES[0], "cell": cell, "rsrp_dbm": -90.0 }],
        "handovers": [{ "carrier": row::NAMES[0], "outcome": "success", "dark_s": 0.04 }],
    });
    line.to_string()
}

fn process(world: &World, side: Side) -> &crate::process::Process {
    if side == Side::Gateway { &world.gateway } else { &world.cloud }
}

fn lines_with(log: &str, words: &str) -> usize {
    log.lines().filter(|line| line.contains(words)).count()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_have_each_side_mode_and_family_and_the_cover_both_sides_and_modes() {
        let all: BTreeSet<String> = rows(true).iter().map(SkewRow::to_string).collect();
        assert_eq!(all.len(), 2 * 3 * 2, "{all:?}");
        let cover: Vec<String> = rows(false).iter().map(SkewRow::to_string).collect();
        assert!(cover.iter().all(|line| all.contains(line)), "{cover:?}");
        for words in ["quic x quic", "tls x tls", "gateway", "cloud", "IPv4", "IPv6"] {
            assert_eq!(cover.iter().filter(|line| line.contains(words)).count(), 1, "{words}");
        }
        assert!(rows(true).iter().all(|row| row.row.victims() == Some(vec![0, 1])));
    }
}
