//! Throughput and processor time of gateway and cloud on one machine without link limits.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::Effort;
use crate::addresses::{Family, SERVER};
use crate::download::Download;
use crate::report::{Goal, Report, median};
use crate::usage;
use crate::world::{Plan, World};

const AIM_MBIT_S: f64 = 1000.0;

/// The figures of one download.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Throughput {
    pub(crate) mbit_s: f64,
    pub(crate) gateway_s_per_gb: f64,
    pub(crate) cloud_s_per_gb: f64,
}

impl Throughput {
    /// Downloads a file by interception and discards the bytes.
    pub(crate) fn measure(world: &World, name: &str) -> Result<Throughput> {
        let used = || -> Result<(f64, f64)> {
            let (gateway, cloud) = (world.gateway.id(), world.cloud.id());
            Ok((usage::processor_s(gateway)?, usage::processor_s(cloud)?))
        };
        let before = used()?;
        let download = Download::new(&SERVER.host(Family::V4), name, Path::new("/dev/null"));
        let report = download.run(&world.lab.passenger)?;
        let after = used()?;
        let gigabytes = report.bytes as f64 / 1e9;
        Ok(Throughput {
            mbit_s: report.mbit_s(),
            gateway_s_per_gb: (after.0 - before.0) / gigabytes,
            cloud_s_per_gb: (after.1 - before.1) / gigabytes,
        })
    }
}

/// Downloads by interception. The first download is checked; curl discards the others.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (size, count) = effort.pick((1_000_000_000, 5), (50_000_000, 1));
    let plan = Plan::new().wire("alpha").wire("beta");
    let rounds = super::in_tls(&plan, move |world| {
        let checked = world.web.add(50_000_000, 8)?;
        world.download(&checked).verify(&world.lab.passenger, &checked)?;
        let file = world.web.add(size, 9)?;
        (0..count).map(|_| Throughput::measure(world, &file.name)).collect::<Result<Vec<_>>>()
    })?;
    let figure = |pick: fn(&Throughput) -> f64| rounds.iter().map(pick).collect::<Vec<f64>>();
    let (rates, gateway, cloud) = (
        figure(|round| round.mbit_s),
        figure(|round| round.gateway_s_per_gb),
        figure(|round| round.cloud_s_per_gb),
    );
    report.result("throughput", median(&rates), "Mbit/s", Goal::AtLeast(AIM_MBIT_S), &rates);
    report.result("throughput_cpu_gateway", median(&gateway), "s/GB", Goal::None, &gateway);
    report.result("throughput_cpu_cloud", median(&cloud), "s/GB", Goal::None, &cloud);
    Ok(())
}
