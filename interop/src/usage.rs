//! The processor time and memory of a process, as the kernel reports them.

use anyhow::{Context, Result};

/// The kernel's clock ticks a second in `/proc` (fixed for user space on Linux).
const TICKS_PER_S: f64 = 100.0;

/// Processor time of a process so far, user and system, s.
pub fn processor_s(process: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name may contain anything, so fields count from the last parenthesis (proc(5)).
    let (_, rest) = text.rsplit_once(')').context("stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |index: usize| -> Result<f64> {
        Ok(fields.get(index).context("stat is short")?.parse::<u64>()? as f64)
    };
    Ok((ticks(11)? + ticks(12)?) / TICKS_PER_S)
}

/// Open descriptors of a process.
pub fn descriptors(process: u32) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{process}/fd"))?.count())
}

/// Resident memory of a process, bytes. Shared pages count whole, so that other processes of the
/// same program change nothing.
pub fn memory_bytes(process: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
    let line = text.lines().find(|line| line.starts_with("Rss:")).context("no Rss line")?;
    let kilobytes: u64 = line.split_whitespace().nth(1).context("Rss")?.parse()?;
    Ok(kilobytes * 1024)
}

/// Processor time that this machine has used for anything, of all processors, s.
pub fn machine_s() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    // User, nice, system, idle, waiting for disks, and interrupts (proc(5)).
    let ticks = line.split_whitespace().skip(1).map(str::parse::<u64>);
    let ticks: Vec<u64> = ticks.collect::<Result<_, _>>()?;
    let idle = [3, 4].iter().filter_map(|&column| ticks.get(column)).sum::<u64>();
    // Guests count as users, too.
    Ok(ticks.iter().take(8).sum::<u64>().saturating_sub(idle) as f64 / TICKS_PER_S)
}
