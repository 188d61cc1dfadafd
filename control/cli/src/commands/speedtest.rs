//! `polyrail speedtest`: measures the carriers of a running gateway.
//!
//! The gateway measures; the command asks it for the results. A test that nobody asks about ends by
//! itself, so that this command may end at any time.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use polyrail_admin::{
    CarrierBytes, SPEEDTEST_S, SPEEDTEST_S_MAX, SpeedtestOrder, SpeedtestPhase, SpeedtestRow,
    SpeedtestState, SpeedtestStep,
};

use super::admin::Connection;
use super::shown::{self, bytes, milliseconds, rate, table};

/// `polyrail speedtest`.
#[derive(Args)]
pub(crate) struct Speedtest {
    /// How long each direction is measured
    #[arg(long, value_name = "SECONDS", default_value_t = SPEEDTEST_S)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=SPEEDTEST_S_MAX))]
    seconds: u64,
    /// Test only this carrier, even if it is metered or has a cap; may be repeated
    #[arg(long = "carrier", value_name = "NAME")]
    carriers: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

/// Runs a test; returns false if a measurement failed.
pub(crate) fn run(arguments: &Speedtest, out: &mut dyn Write) -> anyhow::Result<bool> {
    let Speedtest { seconds, carriers, connection } = arguments;
    let client = connection.client()?;
    let order = SpeedtestOrder { seconds: *seconds, carriers: carriers.clone() };
    let mut answer = client.start_speedtest(&order)?;
    let mut step = None;
    while answer.value.state == SpeedtestPhase::Running {
        let now = answer.value.measuring.clone();
        if now != step && io::stderr().is_terminal() {
            now.iter().try_for_each(|now| writeln!(io::stderr(), "{}", progress(now)))?;
        }
        step = now;
        std::thread::sleep(ASK_EVERY);
        answer = client.get("/v1/speedtest")?;
    }
    connection.show(&answer, out, show)?;
    let state = &answer.value;
    let failed = state.rows.iter().any(|row| row.error.is_some());
    Ok(state.state == SpeedtestPhase::Finished && !failed)
}

fn progress(now: &SpeedtestStep) -> String {
    format!("{}: {} ...", now.carriers.join(" + "), shown::word(&now.step))
}

fn show(state: &SpeedtestState, out: &mut dyn Write) -> io::Result<()> {
    let heads =
        ["CARRIER", "DOWN", "UP", "RTT IDLE", "RTT DOWN", "RTT UP", "LOSS UP", "BYTES", "ERROR"];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(state.rows.iter().map(row));
    table(&rows, out)?;
    for skipped in &state.skipped {
        writeln!(out, "not tested: {} ({})", skipped.carrier, skipped.reason)?;
    }
    if let Some(message) = &state.message {
        writeln!(out, "stopped: {message}")?;
    }
    writeln!(out, "to {}; the test competed with passengers as one user", state.cloud)
}

fn row(row: &SpeedtestRow) -> [String; 9] {
    let time = |us: Option<u64>| us.map_or("-".to_owned(), milliseconds);
    let speed = |it: Option<u64>| it.map_or("-".to_owned(), rate);
    let loss = match row.sent_packets {
        0 => "-".to_owned(),
        sent => format!("{:.1} %", row.lost_packets as f64 / sent as f64 * 100.0),
    };
    let total = |one: &CarrierBytes| bytes(one.sent_bytes + one.received_bytes);
    let (name, used) = match &row.carriers[..] {
        [one] => (one.carrier.clone(), total(one)),
        all => {
            let each = all.iter().map(|one| format!("{} {}", one.carrier, total(one)));
            ("(bond)".to_owned(), each.collect::<Vec<_>>().join(", "))
        }
    };
    [
        name,
        speed(row.download_bits_per_s),
        speed(row.upload_bits_per_s),
        time(row.rtt_idle_us),
        time(row.rtt_download_us),
        time(row.rtt_upload_us),
        loss,
        used,
        row.error.clone().unwrap_or_default(),
    ]
}

/// Well below the time after which the gateway ends a test that nobody asks about.
const ASK_EVERY: Duration = Duration::from_millis(500);
