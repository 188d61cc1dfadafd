//! Throughput and processor time of each mode on one machine without link limits, with the
//! kernel's segmentation offload and without.
//!
//! Each measurement is a process of its own (`polyrail-lab unlimited`), because an environment
//! variable decides whether QUIC uses the offload.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::bench::throughput::Throughput;
use crate::bench::{Effort, in_world};
use crate::report::{Goal, Report, median};
use crate::world::World;

/// Read by the daemons' QUIC sockets; `off` sends each datagram separately.
const OFFLOAD_VARIABLE: &str = "POLYRAIL_GSO";
const WARM_UP_BYTES: u64 = 20_000_000;

/// Name, mode, and whether the kernel segments.
const VARIANTS: [(&str, &str, bool); 4] = [
    ("quic", "quic", true),
    ("quic_no_offload", "quic", false),
    ("tls", "tls", true),
    ("tls_no_offload", "tls", false),
];

pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (rounds, size) = effort.pick((5_usize, 400_000_000), (1, 50_000_000));
    let mut outcomes = vec![Vec::new(); VARIANTS.len()];
    for round in 0..rounds {
        for place in 0..VARIANTS.len() {
            // Every other round is in reverse order, so that none is always first.
            let place = if round.is_multiple_of(2) { place } else { VARIANTS.len() - 1 - place };
            outcomes[place].push(spawn(VARIANTS[place], size)?);
        }
    }
    for ((name, _, _), outcomes) in VARIANTS.iter().zip(&outcomes) {
        let figure = |pick: fn(&Throughput) -> f64| outcomes.iter().map(pick).collect::<Vec<f64>>();
        let parts = [
            ("", "Mbit/s", figure(|outcome| outcome.mbit_s)),
            ("_cpu_gateway", "s/GB", figure(|outcome| outcome.gateway_s_per_gb)),
            ("_cpu_cloud", "s/GB", figure(|outcome| outcome.cloud_s_per_gb)),
        ];
        for (part, unit, values) in parts {
            let name = format!("unlimited_{name}{part}");
            report.result(&name, median(&values), unit, Goal::None, &values);
        }
    }
    let of =
        |name| VARIANTS.iter().zip(&outcomes).filter(move |it| it.0.0 == name).flat_map(|it| it.1);
    let over = |figure: fn(&Throughput) -> f64| -> Vec<f64> {
        of("quic").zip(of("tls")).map(|(quic, tls)| figure(quic) / figure(tls)).collect()
    };
    let rate = over(|one| one.mbit_s);
    report.result("unlimited_ratio", median(&rate), "x", Goal::AtLeast(0.75), &rate);
    let cpu = over(|one| one.gateway_s_per_gb + one.cloud_s_per_gb);
    report.result("unlimited_cpu_ratio", median(&cpu), "x", Goal::AtMost(1.5), &cpu);
    Ok(())
}

fn spawn((name, mode, offload): (&str, &str, bool), size: u64) -> Result<Throughput> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("unlimited").arg(format!("{mode}={size}"));
    if !offload {
        command.env(OFFLOAD_VARIABLE, "off");
    }
    let output = command.stderr(std::process::Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{name} could not be measured");
    serde_json::from_slice(&output.stdout).with_context(|| format!("the outcome of {name}"))
}

/// One measurement, in this process: prints its outcome as JSON.
pub fn unlimited(what: &str) -> Result<()> {
    let (mode, size) = what.split_once('=').context("MODE=BYTES")?;
    let size: u64 = size.parse().context("BYTES")?;
    let offload = std::env::var_os(OFFLOAD_VARIABLE).is_none_or(|value| value != "off");
    let plan = super::plan(mode).wire("alpha").wire("beta");
    let outcome = in_world(&plan, move |world| {
        if !offload {
            cut_in_advance(world)?;
        }
        let checked = world.web.add(WARM_UP_BYTES, 1)?;
        world.download(&checked).verify(&world.lab.passenger, &checked)?;
        let file = world.web.add(size, 2)?;
        Throughput::measure(world, &file.name)
    })?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

/// Disables TCP segmentation offload on the carriers, and reconnects.
fn cut_in_advance(world: &mut World) -> Result<()> {
    for number in 0..world.carriers.len() {
        world.lab.gateway.ip(&format!("link set dev wan{number} gso_max_segs 1"))?;
        world.lab.cloud.ip(&format!("link set dev car{number} gso_max_segs 1"))?;
    }
    super::restart_gateway(world)
}
