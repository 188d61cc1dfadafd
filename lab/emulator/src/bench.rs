//! `polyrail-emulator bench`: how late packets leave the TUN driver under a steady load.
//!
//! The emulator runs as its own process on one core, between two fresh namespaces. Paced UDP from
//! the other cores crosses all its links in both directions, and the bench counts the arriving
//! packets.

use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use polyrail_emulator::namespace::Namespace;
use polyrail_emulator::results::{Goal, Report};
use serde_json::{Value, json};

/// The goal for the 99.9th percentile of the timing error.
const GOAL_P999_US: f64 = 1000.0;

/// The share of the offered load that must arrive for the timing to be valid.
const GOAL_SHARE: f64 = 0.97;

/// The size of an IP packet, and of its headers.
const PACKET_BYTES: usize = 1400;
const HEADER_BYTES: usize = 28;

/// The downlink's share of a link's load.
const DOWN_SHARE: f64 = 0.8;

/// The rate of a link over its load.
const HEADROOM: f64 = 1.1;

const DELAY_US: u64 = 20_000;

/// The options of the bench.
#[derive(clap::Args)]
pub struct BenchArgs {
    /// How long to send, in seconds.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=120))]
    seconds: u64,
    /// How many links share the load.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=16))]
    links: u64,
    /// The load of all links and both directions, in Mbit/s of IP packets.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    load: u64,
    /// The core of the emulator; default: the last one.
    #[arg(long)]
    core: Option<usize>,
    /// Run the emulator without real-time priority.
    #[arg(long)]
    no_realtime: bool,
    /// Where to write `emulator_timing.json`.
    #[arg(long, default_value = "target/results")]
    results: PathBuf,
}

/// One direction of one link: from one socket to another at a steady pace.
struct Flow {
    from: UdpSocket,
    to: UdpSocket,
    interval: Duration,
    due: Instant,
    sent: u64,
}

struct Received {
    packets: u64,
    one_way_ns: Histogram<u64>,
}

/// Measures, prints the `RESULT` lines and writes the results file.
pub fn run(args: &BenchArgs) -> Result<()> {
    let (core, others) = cores(args.core)?;
    sched_setaffinity(Pid::from_raw(0), &others).context("leaving the emulator's core")?;
    let _ = nix::sys::prctl::set_timerslack(1);
    let (near, far) = (Namespace::new()?, Namespace::new()?);
    let mut emulator = Emulator::start(args, core, &near, &far)?;
    let mut flows = flows(args, &near, &far)?;
    let run_time = Duration::from_secs(args.seconds);
    let over = AtomicBool::new(false);
    let sinks: Vec<UdpSocket> =
        flows.iter().map(|flow| flow.to.try_clone()).collect::<Result<_, _>>()?;
    let epoch = Instant::now();
    let received = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&sinks, epoch, &over));
        send(&mut flows, epoch, run_time);
        // Packets in flight have their delay to arrive.
        std::thread::sleep(Duration::from_micros(DELAY_US) + Duration::from_millis(200));
        over.store(true, Ordering::Relaxed);
        receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    let lines = emulator.stop()?;
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let cpu = seconds(usage.user_time()) + seconds(usage.system_time());
    let sent: u64 = flows.iter().map(|flow| flow.sent).sum();
    let total = lines.last().context("the emulator printed no statistics")?;
    let timing = &total["total"]["timing"];
    let p999 = timing["p999_us"].as_f64().context("the emulator reported no timing")?;
    let mbit =
        |packets: u64| (packets as usize * PACKET_BYTES * 8) as f64 / run_time.as_secs_f64() / 1e6;
    let cpu_share = cpu / run_time.as_secs_f64() * 100.0;
    let at = |quantile| received.one_way_ns.value_at_quantile(quantile) as f64 / 1e3;
    let mut report = Report::default();
    report.result("emulator_timing_error_p999", p999, "us", Goal::AtMost(GOAL_P999_US), &[]);
    let goal = Goal::AtLeast(args.load as f64 * GOAL_SHARE);
    report.result("emulator_load_carried", mbit(received.packets), "Mbit/s", goal, &[]);
    println!("emulator CPU {cpu_share:.1} % of core {core}; timing {timing}");
    let record = json!({
        "seconds": args.seconds, "links": args.links, "load_mbit": args.load, "core": core,
        "realtime": emulator.ready["realtime"], "sent_mbit": mbit(sent),
        "carried_mbit": mbit(received.packets), "cpu_percent": cpu_share, "timing": timing,
        "delay_us": DELAY_US,
        "one_way_us": { "p50": at(0.5), "p99": at(0.99), "p999": at(0.999) },
    });
    write(&args.results, &record)
}

/// The emulator's core, and the other cores that this process may use (the same if there is only
/// one).
fn cores(wanted: Option<usize>) -> Result<(usize, CpuSet)> {
    let mut others = sched_getaffinity(Pid::from_raw(0))?;
    let all: Vec<usize> =
        (0..CpuSet::count()).filter(|core| others.is_set(*core).unwrap_or(false)).collect();
    let core = wanted.or(all.last().copied()).context("no core to run on")?;
    if !all.contains(&core) {
        bail!("core {core} is not one of those allowed: {all:?}");
    }
    if all.len() > 1 {
        others.unset(core)?;
    }
    Ok((core, others))
}

/// The emulator's process.
struct Emulator {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    ready: Value,
}

impl Emulator {
    fn start(args: &BenchArgs, core: usize, near: &Namespace, far: &Namespace) -> Result<Self> {
        let myself = std::env::current_exe().context("finding this program")?;
        let mut command = Namespace::current()?.command(myself);
        command.args(["--log-level", "warn", "run", "/dev/stdin", "--driver", "tun"]);
        command.arg("--core").arg(core.to_string());
        command.arg("--near").arg(near.path()).arg("--far").arg(far.path());
        if args.no_realtime {
            command.arg("--no-realtime");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(scenario(args).as_bytes())?;
        }
        let mut out = BufReader::new(child.stdout.take().context("no output to read")?);
        let mut line = String::new();
        out.read_line(&mut line)?;
        let ready = serde_json::from_str(&line).context("the emulator did not start")?;
        Ok(Self { child, out, ready })
    }

    fn stop(&mut self) -> Result<Vec<Value>> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM)?;
        let mut lines = Vec::new();
        for line in std::io::Read::by_ref(&mut self.out).lines() {
            lines.push(serde_json::from_str(&line?)?);
        }
        self.child.wait()?;
        Ok(lines)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The load of one link in Mbit/s, up and down.
fn loads(args: &BenchArgs) -> [f64; 2] {
    let link = args.load as f64 / args.links as f64;
    [link * (1.0 - DOWN_SHARE), link * DOWN_SHARE]
}

fn scenario(args: &BenchArgs) -> String {
    let [up, down] = loads(args).map(|mbit| (mbit * HEADROOM * 1e6) as u64);
    let direction = |rate| {
        format!("{{ rate = \"{rate} bit/s\", delay = \"{DELAY_US} us\", queue = \"1 MiB\" }}")
    };
    (0..args.links)
        .map(|link| {
            format!(
                "[[link]]\nname = \"l{link}\"\nup = {}\ndown = {}\n\
                 near.addresses = [\"10.77.{link}.1/24\"]\n\
                 far.addresses = [\"10.77.{link}.2/24\"]\n",
                direction(up),
                direction(down)
            )
        })
        .collect()
}

fn flows(args: &BenchArgs, near: &Namespace, far: &Namespace) -> Result<Vec<Flow>> {
    let mut flows = Vec::new();
    for link in 0..args.links {
        let socket = |side: &Namespace, host| -> Result<UdpSocket> {
            let socket = side.run(|| UdpSocket::bind(format!("10.77.{link}.{host}:9")))??;
            // Room for a late receiver; the kernel may grant less.
            let _ = nix::sys::socket::setsockopt(
                &socket,
                nix::sys::socket::sockopt::RcvBufForce,
                &(16 << 20),
            );
            Ok(socket)
        };
        let (a, b) = (socket(near, 1)?, socket(far, 2)?);
        a.connect(b.local_addr()?)?;
        b.connect(a.local_addr()?)?;
        let pairs = [(a.try_clone()?, b.try_clone()?), (b, a)];
        for ((from, to), mbit) in pairs.into_iter().zip(loads(args)) {
            let interval = Duration::from_secs_f64((PACKET_BYTES * 8) as f64 / (mbit * 1e6));
            // Flows start at different times, so that their packets do not coincide.
            let due = Instant::now() + interval.mul_f64(flows.len() as f64 / 7.0);
            flows.push(Flow { from, to, interval, due, sent: 0 });
        }
    }
    Ok(flows)
}

/// Sends all flows at their pace. A packet that the kernel refuses does not count as sent.
fn send(flows: &mut [Flow], epoch: Instant, run_time: Duration) {
    let end = epoch + run_time;
    let mut payload = [0; PACKET_BYTES - HEADER_BYTES];
    while Instant::now() < end {
        let mut next = end;
        for flow in flows.iter_mut() {
            while flow.due <= Instant::now() && flow.due < end {
                let stamp = epoch.elapsed().as_nanos() as u64;
                payload[..8].copy_from_slice(&stamp.to_be_bytes());
                flow.sent += u64::from(flow.from.send(&payload).is_ok());
                flow.due += flow.interval;
            }
            next = next.min(flow.due);
        }
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

fn receive(sinks: &[UdpSocket], epoch: Instant, over: &AtomicBool) -> Result<Received> {
    let mut one_way_ns = Histogram::new_with_bounds(1, 10_000_000_000, 3)?;
    let mut packets = 0;
    let mut buffer = [0; 2048];
    sinks.iter().try_for_each(|sink| sink.set_nonblocking(true))?;
    let mut polled: Vec<_> =
        sinks.iter().map(|sink| PollFd::new(sink.as_fd(), PollFlags::POLLIN)).collect();
    while !over.load(Ordering::Relaxed) {
        poll(&mut polled, PollTimeout::from(50_u8))?;
        for sink in sinks {
            while let Ok(length @ 8..) = sink.recv(&mut buffer) {
                let mut stamp = [0; 8];
                stamp.copy_from_slice(&buffer[..length][..8]);
                let sent = u64::from_be_bytes(stamp);
                let now = epoch.elapsed().as_nanos() as u64;
                one_way_ns.saturating_record(now.saturating_sub(sent));
                packets += 1;
            }
        }
    }
    Ok(Received { packets, one_way_ns })
}

fn seconds(time: nix::sys::time::TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}

fn write(folder: &Path, record: &Value) -> Result<()> {
    let file = folder.join("emulator_timing.json");
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&file, format!("{record:#}\n")))
        .with_context(|| format!("writing {}", file.display()))
}
