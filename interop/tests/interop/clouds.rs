//! Two clouds and three gateways: a tunnel under a mountain, a cloud that dies, and a drain.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polyrail_interop::admin;
use polyrail_interop::bench_operate::darken;
use polyrail_interop::fleet::{Fleet, GATEWAYS, answer_within, echo};
use polyrail_interop::lab::Side;

use crate::beside_others;

/// How long new flows may fail; generous, because other scenarios run.
const SERVE_LIMIT: Duration = Duration::from_secs(15);
/// The preferred cloud has to be reachable for 10 s.
const BACK_LIMIT: Duration = Duration::from_secs(25);

#[test]
fn flows_move_to_another_cloud_after_a_death_and_in_a_drain_but_not_in_a_blackout() -> Result<()> {
    beside_others(|| {
        let mut fleet = Fleet::start().context("setting up")?;
        play(&mut fleet).inspect_err(|_| println!("{}", fleet.tails()))
    })
}

fn play(fleet: &mut Fleet) -> Result<()> {
    let mut flows = fleet.open_each()?;
    // All carriers are dark for longer than the gateways wait for one cloud alone.
    darken(fleet, &mut flows, Duration::from_secs(3))?;
    for flow in &mut flows {
        answer_within(flow, SERVE_LIMIT).context("after the blackout")?;
    }
    for gateway in 0..GATEWAYS {
        ensure!(fleet.changes(gateway) == 0, "a blackout moves nothing");
    }

    fleet.clouds[0].kill();
    let took = fleet.slowest_to_serve(SERVE_LIMIT)?;
    println!("a new flow works {took:?} after the death of the cloud");
    let mut kept = fleet.open_each()?;
    fleet.restart_cloud(0)?;
    fleet.wait_for_cloud(0, BACK_LIMIT).context("the preferred cloud is back")?;
    for flow in &mut kept {
        echo(flow).context("a flow of the other cloud")?;
    }
    for (gateway, flow) in flows.iter_mut().enumerate() {
        let error = echo(flow).err().and_then(|error| error.downcast::<std::io::Error>().ok());
        let ended = error.as_ref().is_some_and(|error| {
            !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
        });
        ensure!(ended, "the dead cloud's flow of gateway {gateway} is not reset: {error:?}");
    }

    let mut old = fleet.open_each()?;
    let answer = admin::post(&fleet.socket(Side::Cloud, 0), "/v1/drain", "{\"limit_s\": 60}")?;
    ensure!(answer["flows"].as_u64() >= Some(GATEWAYS as u64), "{answer}");
    fleet.slowest_to_serve(SERVE_LIMIT)?;
    for gateway in 0..GATEWAYS {
        let states = fleet.states(gateway)?;
        ensure!(states[0]["state"] == "going_away" && states[1]["current"] == true, "{states:?}");
    }
    std::thread::sleep(Duration::from_secs(1));
    for flow in &mut old {
        echo(flow).context("a flow of the draining cloud")?;
    }
    ensure!(fleet.clouds[0].exit()?.is_none(), "it waits for its flows");
    drop(old);
    let status = fleet.clouds[0].wait(SERVE_LIMIT)?;
    ensure!(status.success(), "the drained cloud ends in success: {status}");
    fleet.open_each().map(drop)
}
