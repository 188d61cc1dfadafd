//! The time until a restarted daemon serves new flows.

use anyhow::Result;
use nix::sys::signal::Signal;

use crate::bench::{Effort, in_world};
use crate::crash::Crashes;
use crate::lab::Side;
use crate::report::{Goal, Report, median};
use crate::world::{Plan, World};

/// Each daemon is killed, and panics, 20 times.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let rounds = effort.pick(20, 1);
    for side in [Side::Gateway, Side::Cloud] {
        for (how, signal) in [("kill", Signal::SIGKILL), ("panic", Signal::SIGUSR1)] {
            let times =
                in_world(&Plan::twins(), move |world| measure(world, side, signal, rounds))?;
            let name = format!("attack_restart_{}_{how}", side.name());
            let (serves, resets): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
            let goal = if effort == Effort::Full { Goal::AtMost(2000.0) } else { Goal::None };
            report.result(&format!("{name}_serves"), median(&serves), "ms", goal, &serves);
            report.result(&format!("{name}_resets"), median(&resets), "ms", Goal::None, &resets);
        }
    }
    Ok(())
}

fn measure(
    world: &mut World,
    side: Side,
    signal: Signal,
    rounds: usize,
) -> Result<Vec<(f64, f64)>> {
    let crashes = Crashes::new(world)?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        world.wait_for_carriers()?;
        let recovery = crashes.crash(world, side, signal)?;
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1000.0;
        times.push((ms(recovery.serves), ms(recovery.resets)));
    }
    Ok(times)
}
