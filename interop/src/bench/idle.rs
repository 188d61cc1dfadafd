//! A 256 KB download after the tunnels were idle, with Debian's kernel parameters and with ours.

use std::time::Duration;

use anyhow::Result;

use super::{DEBIAN, Effort};
use crate::addresses::{Family, SERVER};
use crate::report::{Goal, Report, median};
use crate::world::{Plan, World};

const SIZE: u64 = 256_000;
/// The kernel parameters of Polyrail's package.
const OURS: &str = include_str!("../../../packaging/sysctl.d/60-polyrail.conf");

/// Each pause with both sets of parameters.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let pauses: &[(u64, usize)] =
        effort.pick(&[(0, 5), (1, 5), (10, 3), (60, 2)], &[(0, 1), (1, 1)]);
    // Debian's default congestion control is cubic; a namespace cannot set it, the daemon can.
    for (name, parameters, control) in [("debian", DEBIAN, "cubic"), ("polyrail", OURS, "bbr")] {
        let plan = Plan::twins().cloud("congestion", control);
        let plan =
            super::assignments(parameters).fold(plan, |plan, (key, value)| plan.sysctl(key, value));
        let pauses = pauses.to_vec();
        let times = super::in_tls(&plan, move |world| {
            pauses.iter().map(|pause| after(world, *pause)).collect::<Result<Vec<_>>>()
        })?;
        for (pause, times) in times {
            let name = format!("download_256kb_after_{pause}s_{name}");
            report.result(&name, median(&times), "ms", Goal::None, &times);
        }
    }
    Ok(())
}

/// The times of downloads, each after a pause, ms.
fn after(world: &mut World, (pause_s, count): (u64, usize)) -> Result<(u64, Vec<f64>)> {
    let warm = world.web.add(4_000_000, 6)?;
    let file = world.web.add(SIZE, 7)?;
    let host = SERVER.host(Family::V4);
    let mut times = Vec::new();
    for _ in 0..count {
        world.download_from(&host, &warm).verify(&world.lab.passenger, &warm)?;
        std::thread::sleep(Duration::from_secs(pause_s));
        let download = world.download_from(&host, &file);
        times.push(download.verify(&world.lab.passenger, &file)?.total_s * 1000.0);
    }
    Ok((pause_s, times))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::assignments;

    #[test]
    fn both_sets_name_what_they_set() {
        for text in [OURS, DEBIAN] {
            assert!(assignments(text).any(|(key, _)| key == "net.ipv4.tcp_slow_start_after_idle"));
            assert!(assignments(text).all(|(key, value)| !key.is_empty() && !value.is_empty()));
        }
    }
}
