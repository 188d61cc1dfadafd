//! Handovers whose queued data is lost or arrives late: the gateway tells types III and II apart by
//! its tunnels, although the duration alone suggests the opposite.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use polyrail_interop::carrier::{self, Link};
use polyrail_interop::lab::Side;
use polyrail_interop::linkdb::{self, Rail};
use polyrail_interop::world::{Plan, World};

use super::journey::{self, FIRST, Journey, SECOND};
use super::{count, wait_for_linkdb};
use crate::{alone, both_modes};

const BOUND: Duration = Duration::from_secs(58);
/// More than the carriers deliver meanwhile.
const SIZE: u64 = 32_000_000;
/// Short for type III and long for type II: the limit by duration is 3.5 s.
const LOST: Duration = Duration::from_millis(1_500);
const HELD: Duration = Duration::from_millis(4_500);
/// Until the path is measured, and the train has a direction.
const PAUSE: Duration = Duration::from_secs(4);
const SOON: Duration = Duration::from_secs(15);

#[test]
fn lost_and_held_data_decide_the_type_of_a_failure() -> Result<()> {
    let link = || Link::new(5.0, 40).queue_kib(96);
    let rail = Rail::default();
    let plan = Plan::new().carrier("alpha", link()).carrier("beta", link()).rail(rail);
    // A machine that is busy elsewhere delays retransmissions.
    alone(|| both_modes(&plan, BOUND, records_both_types))
}

fn records_both_types(world: &mut World) -> Result<()> {
    let file = world.web.add(SIZE, 22)?;
    let mut download = world.download(&file).start(&world.lab.passenger)?;
    download.wait_for_bytes(1_000_000)?;
    let train = world.train.clone().context("no train")?;
    let journey = Journey::begin(train, FIRST - 400.0);
    for (number, (metres, fate, dark)) in (1..).zip([(FIRST, "drop", LOST), (SECOND, "hold", HELD)])
    {
        std::thread::sleep(PAUSE);
        carrier::command(&world.lab, &format!("down alpha {fate}"))?;
        journey.alpha_has(None);
        std::thread::sleep(dark);
        world.carriers[0].brighten(&world.lab)?;
        journey.alpha_has(Some(journey::cells(metres).1));
        let recorded = |state: &serde_json::Value| count(state, "recorded") == number;
        wait_for_linkdb(world, Side::Gateway, "record", SOON, recorded)?;
    }
    ensure!(!download.ended(), "the download was over too soon");
    download.verify(&file)?;
    for daemon in [&mut world.gateway, &mut world.cloud] {
        daemon.signal(Signal::SIGTERM)?;
        daemon.wait(Duration::from_secs(10))?;
    }
    let lines = linkdb::export(&world.programs, &linkdb::database(&world.lab, Side::Gateway))?;
    let of = |metres: f64, outcome: &str| {
        let from = format!(",{:x},", journey::cells(metres).0);
        lines.iter().any(|line| line.contains(&from) && line.contains(outcome))
    };
    ensure!(of(FIRST, ",type3,") && of(SECOND, ",type2,"), "{lines:#?}");
    world.restart_cloud()?;
    world.restart_gateway()?;
    world.wait_until_up()
}
