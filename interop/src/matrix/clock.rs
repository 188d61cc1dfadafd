//! Rows whose fault is a step of the clock: only in a kernel whose clock is nobody else's.
//!
//! The kernel is Debian's `user-mode-linux`. The host's files are its root, read-only; its first
//! process runs this program again, to measure inside, and hands each row back as a line of JSON.

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::sys::signal::{Signal, killpg};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime, clock_settime};
use nix::unistd::Pid;
use polyrail_emulator::guest;

use crate::addresses::Family;

use super::row::{self, RowResult};
use super::{CloudMode, GatewayMode, Row};

/// The kernel as a program.
const KERNEL: &str = "/usr/bin/linux.uml";
/// What a row takes at most, inside.
const ROW_LIMIT: Duration = Duration::from_secs(60);
/// Booting, on a busy machine.
const BOOT_LIMIT: Duration = Duration::from_secs(60);
/// Marks the lines that are rows.
const ROW_MARK: &str = "ROW ";
const END_MARK: &str = "INSIDE ended with ";
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
            // The kernel takes nothing earlier than its own start.
            Step::To1970 => Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME)?) + MINUTE,
        })
    }
}

fn wall_clock() -> Result<Duration> {
    SystemTime::now().duration_since(UNIX_EPOCH).context("a clock before 1970")
}

fn set_clock(since_1970: Duration) -> Result<()> {
    clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::from_duration(since_1970))
        .context("setting the clock")
}

/// The rows: all that can connect, or each mode of either daemon at least once.
fn rows(all: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for (number, gateway) in GatewayMode::ALL.into_iter().enumerate() {
        for cloud in CloudMode::ALL {
            for family in Family::BOTH {
                let once = family == Family::BOTH[number % 2] && cloud.key() == gateway.key();
                let row = Row { gateway, cloud, family, faults: Vec::new() };
                if row.can_connect() && (all || once) {
                    rows.push(row);
                }
            }
        }
    }
    rows
}

/// The lines of the rows: of all that can connect, or of each mode of either daemon at least once.
pub fn lines(all: bool) -> Vec<String> {
    rows(all).iter().map(row::line_with_clock).collect()
}

/// Why there is no guest on this machine: what its tests are to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoGuest {
    /// Its kernel is not installed.
    Missing,
    /// Its kernel cannot run on this processor ([`guest::died_of_tiles`]).
    Unfit,
}

/// Runs the rows of these lines in a guest, if this machine can have one.
/// `program` is `polyrail-lab`; a carrier may take `tolerance` times its target.
///
/// # Errors
/// When the guest fails, with its output.
pub fn measure(
    program: &Path,
    lines: &[String],
    tolerance: u32,
) -> Result<Result<Vec<RowResult>, NoGuest>> {
    if !Path::new(KERNEL).exists() {
        return Ok(Err(NoGuest::Missing));
    }
    let folder = std::env::temp_dir().join(format!("polyrail-guest-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let outcome = boot(&init_script(program, lines, tolerance), lines.len(), &folder);
    std::fs::remove_dir_all(&folder)?;
    match outcome {
        Err(error) if guest::died_of_tiles(&error.to_string()) => Ok(Err(NoGuest::Unfit)),
        outcome => outcome.map(Ok),
    }
}

fn boot(script: &str, rows: usize, folder: &Path) -> Result<Vec<RowResult>> {
    let init = folder.join("init");
    std::fs::write(&init, script)?;
    std::fs::set_permissions(&init, Permissions::from_mode(0o755))?;
    // The kernel's helpers would outlive it, were they not in a namespace of processes.
    let mut child = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child=KILL", "--mount-proc", KERNEL])
        .args(["mem=512M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet"])
        .args(["con=null", "con0=null,fd:1", "ssl=null", "panic=-1"])
        .arg(format!("init={}", init.display()))
        .env("TMPDIR", folder)
        .env("HOME", folder)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("starting user-mode Linux")?;
    let group = Pid::from_raw(i32::try_from(child.id())?);
    let output = child.stdout.take().context("no output")?;
    let outcome = listen(output, BOOT_LIMIT + ROW_LIMIT * u32::try_from(rows)?);
    // Fails only when all of it has ended already.
    let _ = killpg(group, Signal::SIGKILL);
    child.wait()?;
    let outcomes = outcome?;
    ensure!(outcomes.len() == rows, "{} of {rows} rows came from the guest", outcomes.len());
    Ok(outcomes)
}

/// Reads the guest's words until it has ended.
fn listen(output: impl std::io::Read + Send + 'static, limit: Duration) -> Result<Vec<RowResult>> {
    let (lines, inbox) = channel();
    std::thread::spawn(move || {
        // Lines end with the kernel; they may hold anything.
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let _ = lines.send(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
    });
    let end = Instant::now() + limit;
    let (mut said, mut outcomes) = (String::new(), Vec::new());
    loop {
        match inbox.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(row) = line.strip_prefix(ROW_MARK) {
                    outcomes.push(serde_json::from_str(row).context("a row of the guest")?);
                } else if let Some(status) = line.strip_prefix(END_MARK) {
                    ensure!(status == "0", "inside the guest:\n{said}");
                    return Ok(outcomes);
                } else {
                    said += &format!("{line}\n");
                    ensure!(!line.contains("Kernel panic"), "the guest died:\n{said}");
                }
            }
            Err(RecvTimeoutError::Timeout) => bail!("the guest takes too long:\n{said}"),
            Err(RecvTimeoutError::Disconnected) => bail!("the guest died:\n{said}"),
        }
    }
}

/// No line of a row has a character that means something between quotes.
fn init_script(program: &Path, lines: &[String], tolerance: u32) -> String {
    let rows: String = lines.iter().map(|line| format!(" --inside-guest '{line}'")).collect();
    format!(
        "#!/bin/sh\n\
         export PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/run RUST_BACKTRACE=0\n\
         mount -t proc proc /proc\n\
         mount -t tmpfs run /run\n\
         {} matrix --tolerance {tolerance}{rows} 2>&1\n\
         echo \"{END_MARK}$?\"\n\
         sleep 1000\n",
        program.display()
    )
}

/// What the guest's first process does: the rows of these lines, one after another, each a line.
///
/// # Errors
/// When the kernel lacks something.
pub fn inside_guest(lines: &[String], tolerance: u32) -> Result<()> {
    ["ipv6", "veth", "tun", "tcp_bbr"].into_iter().try_for_each(load_module)?;
    let (boot, started) = (wall_clock()?, Instant::now());
    for row in rows(true).iter().filter(|row| lines.contains(&row::line_with_clock(row))) {
        // The row before left the clock in 1970.
        set_clock(boot + started.elapsed())?;
        let outcome = row::run_with_clock(row, tolerance);
        println!("{ROW_MARK}{}", serde_json::to_string(&outcome)?);
    }
    Ok(())
}

/// Loads a module of the guest's kernel with its dependencies. (There may be no modprobe.)
fn load_module(name: &str) -> Result<()> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let folder = PathBuf::from("/usr/lib/uml/modules").join(release.trim());
    let listed = std::fs::read_to_string(folder.join("modules.dep")).context("modules")?;
    let (file, needs) = listed
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(file, _)| file.ends_with(&format!("/{name}.ko")))
        .with_context(|| format!("no module {name} in {}", folder.display()))?;
    for file in needs.split_whitespace().rev().chain([file]) {
        let module = File::open(folder.join(file))?;
        match finit_module(&module, c"", ModuleInitFlags::empty()) {
            Ok(()) | Err(nix::Error::EEXIST) => {}
            Err(error) => bail!("cannot load {file}: {error}"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_has_a_row_and_all_rows_are_both_families() {
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
        let once = rows(false);
        let clouds = [CloudMode::Tls, CloudMode::Quic, CloudMode::Auto, CloudMode::Auto];
        assert_eq!(once.iter().map(|row| row.cloud).collect::<Vec<_>>(), clouds);
        let modes: Vec<GatewayMode> = once.iter().map(|row| row.gateway).collect();
        assert_eq!(modes, GatewayMode::ALL);
        assert!(Family::BOTH.iter().all(|family| once.iter().any(|row| row.family == *family)));
    }

    #[test]
    fn the_guest_is_told_each_row_by_its_own_line_and_the_tolerance() {
        let (all, once) = (lines(true), lines(false));
        assert!(all.iter().enumerate().all(|(at, line)| !all[..at].contains(line)), "{all:?}");
        assert!(once.iter().all(|line| all.contains(line)), "{once:?}");
        assert!(!all.iter().any(|line| line.contains('\'')), "{all:?}");
        let script = init_script(Path::new("/bin/lab"), &once[..2], 7);
        let told = "/bin/lab matrix --tolerance 7 --inside-guest 'tls x tls    IPv4 clock-step' \
                    --inside-guest 'quic x quic  IPv6 clock-step' 2>&1\n";
        assert!(script.contains(told), "{script}");
    }

    #[test]
    fn rows_and_the_end_are_read_from_the_guests_words() {
        let said = |text: &'static str| listen(text.as_bytes(), Duration::from_secs(5));
        assert_eq!(said("Linux\nINSIDE ended with 0\n").unwrap().len(), 0);
        let failed = format!("{:#}", said("no tun\nINSIDE ended with 1\n").unwrap_err());
        assert!(failed.contains("no tun"), "{failed}");
        assert!(format!("{:#}", said("Linux\n").unwrap_err()).contains("died"));
        let row = "ROW {\"row\":\"x\",\"verdict\":\"ok\",\"steps\":[],\"bytes\":1,\
                   \"total_s\":2.0,\"error\":null}\nINSIDE ended with 0\n";
        assert_eq!(said(row).unwrap()[0].bytes, 1);
    }
}
