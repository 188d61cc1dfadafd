//! The load of the machine while contenders run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use polyrail_emulator::record::Machine;

/// A thread that sleeps for this long is awake on time or late.
const SLEEP: Duration = Duration::from_millis(5);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A second with a higher busy share is full.
const FULL: f64 = 0.95;
/// A run with more than this does not count.
const FULL_MAX: f64 = 0.05;
const LATE_P99_MAX_MS: f64 = 3.0;
const EMULATOR_P99_MAX_MS: f64 = 4.0;

/// Watches the machine from the beginning of the load until it is asked for its figures.
pub(super) struct Watch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Machine>>,
}

impl Watch {
    pub(super) fn start(begin: Instant) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let own = over.clone();
        Self { over, thread: std::thread::spawn(move || watch(&own, begin)) }
    }

    /// The figures without those of an emulator.
    pub(super) fn finish(self) -> Result<Machine> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the watch panicked"))?
    }
}

/// Why a run does not count, if it does not.
pub(super) fn starved(machine: &Machine) -> Option<String> {
    for (what, value, most) in [
        ("share of seconds without an idle processor", machine.full, FULL_MAX),
        ("99th percentile of late wakes, ms", machine.late_p99_ms, LATE_P99_MAX_MS),
        ("99th percentile of late packets, ms", machine.emulator_p99_ms, EMULATOR_P99_MAX_MS),
    ] {
        if value > most {
            return Some(format!("{what}: {value:.2} (limit {most})"));
        }
    }
    None
}

fn watch(over: &AtomicBool, begin: Instant) -> Result<Machine> {
    std::thread::sleep(begin.saturating_duration_since(Instant::now()));
    let mut late = Vec::new();
    let mut machine = Machine::default();
    let (mut full, mut seconds) = (0.0, 0.0);
    let first = Ticks::read()?;
    let (mut last, mut looked) = (first, Instant::now());
    while !over.load(Ordering::Relaxed) {
        let before = Instant::now();
        std::thread::sleep(SLEEP);
        late.push(before.elapsed().saturating_sub(SLEEP).as_secs_f64() * 1e3);
        if looked.elapsed() >= LOOK_EVERY {
            let now = Ticks::read()?;
            full += f64::from(u8::from(now.busy_since(last) > FULL));
            seconds += 1.0;
            (last, looked) = (now, Instant::now());
        }
    }
    late.sort_by(f64::total_cmp);
    machine.busy = Ticks::read()?.busy_since(first);
    machine.full = full / f64::max(seconds, 1.0);
    machine.late_p99_ms = late.get(late.len() * 99 / 100).copied().unwrap_or_default();
    machine.late_most_ms = late.last().copied().unwrap_or_default();
    Ok(machine)
}

/// The processors' clock ticks since boot.
#[derive(Clone, Copy)]
struct Ticks {
    all: u64,
    idle: u64,
}

impl Ticks {
    fn read() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
        Self::parse(&text).context("the first line of /proc/stat")
    }

    /// The first line: user, nice, system, idle, iowait, irq, softirq, steal. Programs with a
    /// positive nice value yield to the contenders, so they count as idle.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|one| one.parse().ok()).collect();
        let idle = ticks.get(1)? + ticks.get(3)? + ticks.get(4)?;
        Some(Self { all: ticks.iter().take(8).sum(), idle })
    }

    fn busy_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1) as f64;
        1.0 - self.idle.saturating_sub(before.idle) as f64 / all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_share_leaves_out_nice_idle_and_waiting() {
        let parse = |line: &str| Ticks::parse(line).unwrap();
        let before = parse("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1");
        let after = parse("cpu  30 10 20 120 20 0 0 0 0 0\n");
        // 100 ticks more, 70 of them nice, idle or waiting.
        assert!((after.busy_since(before) - 0.3).abs() < 1e-9);
        assert!(Ticks::parse("intr 1 2 3").is_none());
    }

    #[test]
    fn run_on_a_busy_machine_is_starved_with_its_reason() {
        assert_eq!(starved(&Machine { busy: 0.9, full: 0.04, ..Machine::default() }), None);
        let reason = starved(&Machine { full: 0.1, ..Machine::default() }).unwrap();
        assert!(reason.contains("processor: 0.10"), "{reason}");
        assert!(starved(&Machine { emulator_p99_ms: 4.5, ..Machine::default() }).is_some());
    }
}
