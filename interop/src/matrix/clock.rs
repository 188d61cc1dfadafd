//! Rows whose fault is a step of the clock: only in a guest, whose clock nothing else uses.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime, clock_settime};
use polyrail_emulator::guest;
use polyrail_emulator::namespace::Namespace;

use crate::addresses::{Family, SERVER};
use crate::programs::Programs;
use crate::world::World;

use super::endless::Endless;
use super::fault::Victim;
use super::row::{self, NAMES, PAUSE, PORT, RUN_UP, RowResult};
use super::target::Class;
use super::{CloudMode, Expected, Fault, GatewayMode, Row, Ways};

/// The rate of each carrier in a guest, whose processor is slow, Mbit/s.
const RATE_MBIT_S: f64 = 1.0;
/// The server's pause after each 16 KiB: 1.6 Mbit/s, which take both carriers.
const SERVER_PAUSE: Duration = Duration::from_millis(80);
/// The time limit of booting on the host's clock.
const BOOT_LIMIT: Duration = Duration::from_secs(60);
/// The time limit of a row on the host's clock.
const ROW_LIMIT: Duration = Duration::from_secs(120);
/// Starts each line of the guest's console that is a result.
const MARK: &str = "ROW ";
const DAY: Duration = Duration::from_secs(24 * 3600);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A step of the real-time clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A day ahead.
    DayAhead,
    /// An hour back.
    HourBack,
    /// To the beginning of 1970.
    To1970,
}

impl Step {
    /// All steps, in the order in which a row takes them.
    pub(super) const ALL: [Step; 3] = [Step::DayAhead, Step::HourBack, Step::To1970];

    pub(super) fn name(self) -> &'static str {
        match self {
            Step::DayAhead => "clock-day-ahead",
            Step::HourBack => "clock-hour-back",
            Step::To1970 => "clock-to-1970",
        }
    }

    /// Sets the clock of this kernel.
    pub(super) fn take(self) -> Result<()> {
        set_clock(match self {
            Step::DayAhead => wall_clock()? + DAY,
            Step::HourBack => wall_clock()?.saturating_sub(HOUR),
            // The kernel refuses a time before its own start.
            Step::To1970 => Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME)?) + MINUTE,
        })
    }
}

fn wall_clock() -> Result<Duration> {
    SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")
}

fn set_clock(since_1970: Duration) -> Result<()> {
    clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::from_duration(since_1970))
        .context("cannot set the clock")
}

/// The rows: all that can connect, or two that have both tunnel modes and both families.
pub fn rows(all: bool) -> Vec<Row> {
    let row = |gateway, cloud, family| Row { gateway, cloud, family, faults: Vec::new() };
    if !all {
        let cloud = CloudMode::Auto;
        return vec![
            row(GatewayMode::Auto, cloud, Family::V4),
            row(GatewayMode::Mixed, cloud, Family::V6),
        ];
    }
    let pairs = GatewayMode::ALL.into_iter().flat_map(|gateway| {
        CloudMode::ALL.into_iter().flat_map(move |cloud| {
            Family::BOTH.into_iter().map(move |family| row(gateway, cloud, family))
        })
    });
    pairs.filter(Row::can_connect).collect()
}

/// The line of such a row.
pub(super) fn line(row: &Row) -> String {
    row.line("clock-step")
}

/// Runs this program with its own arguments in a guest, where it runs `count` rows by
/// [`print_rows`].
///
/// # Errors
/// The guest did not run all rows.
pub(super) fn run_in_guest(count: usize) -> Result<Vec<RowResult>> {
    let limit = BOOT_LIMIT + ROW_LIMIT * u32::try_from(count)?;
    let mut programs = Programs::find()?.with_tools();
    programs.push(std::env::current_exe()?);
    let mut command = vec![programs[programs.len() - 1].display().to_string()];
    command.extend(std::env::args().skip(1));
    let console = guest::run(&command, &programs, limit)?;
    let lines = console.lines().filter_map(|line| line.strip_prefix(MARK));
    let outcomes: Vec<RowResult> = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
    if outcomes.iter().any(|outcome| outcome.error.is_some()) {
        println!("{console}");
    }
    ensure!(outcomes.len() == count, "the guest ran {} rows of {count}", outcomes.len());
    Ok(outcomes)
}

/// Runs rows, and prints each for [`run_in_guest`].
pub(super) fn print_rows(rows: &[Row], tolerance: u32) -> Result<()> {
    for outcome in run(rows, tolerance)? {
        println!("{MARK}{}", serde_json::to_string(&outcome)?);
    }
    Ok(())
}

/// Runs rows one after another; a carrier may take `tolerance` times its target.
///
/// # Errors
/// The clock cannot be set.
pub fn run(rows: &[Row], tolerance: u32) -> Result<Vec<RowResult>> {
    let (boot, started) = (wall_clock()?, Instant::now());
    let one = |row: &Row| {
        // The previous row left the clock in 1970.
        set_clock(boot + started.elapsed())?;
        Ok(row::on_thread(line(row), |outcome| in_world(row, tolerance, outcome)))
    };
    rows.iter().map(one).collect()
}

/// A download in which the clock steps. The carriers that can connect must stay in use.
fn in_world(row: &Row, tolerance: u32, outcome: &mut RowResult) -> Result<()> {
    let plan = row::plan(row, &[], RATE_MBIT_S).proxy_alone();
    let mut world = World::start_cold(&plan).context("setting up")?;
    download(&mut world, row, tolerance, outcome).inspect_err(|_| println!("{}", world.tails()))
}

fn download(world: &mut World, row: &Row, tolerance: u32, outcome: &mut RowResult) -> Result<()> {
    let server = SERVER.at(row.family, PORT);
    let endless = Endless::serve(&world.lab.server, server, SERVER_PAUSE)?;
    row::wait_for_carriers(world, row, &[])?;
    let mut download = row::start_download(world, row, true)?;
    let drawer = Namespace::new()?;
    std::thread::sleep(RUN_UP);
    let class = Class::Clock;
    let limit = class.target() * tolerance;
    for clock_step in Step::ALL {
        clock_step.take()?;
        for (carrier, name) in NAMES.into_iter().enumerate() {
            if !Ways::of(row.gateway, row.cloud, carrier).any() {
                continue;
            }
            let victim = Victim { world, carrier, drawer: &drawer, limit };
            let expected = Expected::Back(class);
            let took = victim.suffer(Fault::None, expected, None).context(clock_step.name())?;
            outcome.steps.push(row::step(clock_step.name().into(), name, class, took));
        }
        ensure!(!download.ended(), "the download ended early");
        std::thread::sleep(PAUSE);
    }
    row::verify(download, &endless, outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_each_compatible_pair_of_modes_in_both_families() {
        let all = rows(true);
        for (gateway, clouds) in [
            (GatewayMode::Tls, vec![CloudMode::Tls, CloudMode::Auto]),
            (GatewayMode::Quic, vec![CloudMode::Quic, CloudMode::Auto]),
            (GatewayMode::Auto, CloudMode::ALL.to_vec()),
            (GatewayMode::Mixed, CloudMode::ALL.to_vec()),
        ] {
            for family in Family::BOTH {
                let rows = all.iter().filter(|row| (row.gateway, row.family) == (gateway, family));
                assert_eq!(rows.map(|row| row.cloud).collect::<Vec<_>>(), clouds, "{gateway}");
            }
        }
        assert!(rows(false).iter().all(|row| all.contains(row)));
    }

    #[test]
    fn each_row_has_a_line_of_its_own() {
        let lines: Vec<String> = rows(true).iter().map(line).collect();
        assert!(
            lines.iter().enumerate().all(|(at, line)| !lines[..at].contains(line)),
            "{lines:?}"
        );
    }
}
