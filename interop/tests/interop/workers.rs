//! Clouds with several workers: tunnels move to the owner of their gateway, over both modes, and
//! operators see one cloud.

use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polyrail_interop::admin;
use polyrail_interop::fleet::{Fleet, GATEWAYS, echo_within};
use polyrail_interop::lab::Side;

use crate::beside_others;

const WORKERS: i64 = 3;
/// How long a flow may be silent; generous, because other scenarios run.
const SERVE_LIMIT: Duration = Duration::from_secs(15);

#[test]
fn flows_survive_restarts_of_carriers_that_arrive_at_any_worker() -> Result<()> {
    beside_others(|| {
        let mut fleet = Fleet::with_workers(WORKERS).context("setting up")?;
        play(&mut fleet).inspect_err(|_| println!("{}", fleet.tails()))
    })
}

fn play(fleet: &mut Fleet) -> Result<()> {
    let mut flows = fleet.open_each()?;
    for mode in ["quic", "tls", "auto", "tls", "quic"] {
        for gateway in 0..GATEWAYS {
            for carrier in ["alpha", "beta"] {
                let socket = fleet.socket(Side::Gateway, gateway);
                let mode = format!("{{\"mode\": \"{mode}\"}}");
                admin::change(&socket, carrier, &mode)?;
                admin::change(&socket, carrier, "{\"restart\": true}")?;
            }
        }
        echo_all(&mut flows).with_context(|| format!("after a change to {mode}"))?;
        fleet.wait_for_cloud(0, SERVE_LIMIT)?;
        echo_all(&mut flows).with_context(|| format!("in mode {mode}"))?;
    }
    sees_one_cloud(fleet)?;

    fleet.restart_cloud(0)?;
    fleet.slowest_to_serve(SERVE_LIMIT)?;
    fleet.wait_for_cloud(0, SERVE_LIMIT * 2)?;
    let flows = fleet.open_each()?;
    admin::post(&fleet.socket(Side::Cloud, 0), "/v1/drain", "{\"limit_s\": 60}")?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(fleet.clouds[0].exit()?.is_none(), "the workers wait for the last flow");
    drop(flows);
    let status = fleet.clouds[0].wait(SERVE_LIMIT)?;
    ensure!(status.success(), "the drained cloud ends in success: {status}");
    Ok(())
}

fn echo_all(flows: &mut [TcpStream]) -> Result<()> {
    flows.iter_mut().enumerate().try_for_each(|(gateway, flow)| {
        echo_within(flow, SERVE_LIMIT).with_context(|| format!("gateway {gateway}"))
    })
}

/// The lists of the admin interface have the sessions of all workers, each once.
fn sees_one_cloud(fleet: &Fleet) -> Result<()> {
    let socket = fleet.socket(Side::Cloud, 0);
    let status = admin::get(&socket, "/v1/status")?;
    let sessions = status["sessions"].as_array().context("no sessions")?;
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let mut ids: Vec<String> = sessions.iter().map(|one| text(&one["id"])).collect();
    ids.dedup();
    let mut peers: Vec<String> = sessions.iter().map(|one| text(&one["peer"])).collect();
    peers.sort();
    ensure!(peers == ["train-1", "train-2", "train-3"] && ids.len() == GATEWAYS, "{status}");
    let paths = admin::paths(&socket)?;
    let up = paths.iter().filter(|path| path["state"] == "up").count();
    ensure!(up == 2 * GATEWAYS, "{paths:?}");
    let mut listed = Vec::new();
    let mut next = String::new();
    loop {
        let page = admin::get(&socket, &format!("/v1/flows?limit=1{next}"))?;
        let flows = page["flows"].as_array().context("no flows")?;
        listed.extend(flows.iter().map(|flow| text(&flow["gateway"])));
        let Some(after) = page["next"].as_str() else { break };
        next = format!("&after={after}");
    }
    listed.sort();
    ensure!(listed == peers, "pages of flows: {listed:?}");
    let users = admin::get(&socket, "/v1/users")?;
    ensure!(users["users"].as_array().map(Vec::len) == Some(GATEWAYS), "{users}");
    Ok(())
}
