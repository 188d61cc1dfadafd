//! Metrics of both daemons: they follow the traffic, and the cloud exports its gateway's report.

use std::time::Duration;

use anyhow::{Result, ensure};
use polyrail_interop::addresses::{Family, SERVER};
use polyrail_interop::datagrams::{ECHO_PORT, connected, echoes, serve_echo};
use polyrail_interop::metrics::{LISTEN, Scrape};
use polyrail_interop::world::{Plan, World};

use crate::scenario;

const MEGABYTE: f64 = 1e6;
const PATIENCE: Duration = Duration::from_secs(20);
const GATEWAY: &str = "gateway=\"train-1\"";

#[test]
fn metrics_follow_the_traffic_and_the_cloud_exports_the_gateways_report() -> Result<()> {
    let listen = LISTEN.to_string();
    let plan = Plan::twins()
        .gateway("metrics.listen", listen.as_str())
        .cloud("metrics.listen", listen.as_str())
        .cloud("session.linger", "1s");
    scenario(&plan, Duration::from_secs(90), |world| {
        let before = scrapes(world)?;
        let file = world.web.add(3_000_000, 1)?;
        world.download(&file).run(&world.lab.passenger)?;
        serve_echo(&world.lab.server)?;
        let socket = connected(&world.lab.passenger, SERVER.at(Family::V4, ECHO_PORT))?;
        for _ in 0..20 {
            ensure!(echoes(&socket, 200, PATIENCE)?, "an echo is lost");
        }
        follow_the_traffic(world, &before)?;
        follow_a_dark_carrier(world)?;
        show_the_report(world)?;
        world.gateway.kill();
        let gone = |scrape: &Scrape| !scrape.has_label(GATEWAY);
        Scrape::until(&world.lab.cloud, "the gateway is gone", PATIENCE, gone)?;
        Ok(())
    })
}

fn scrapes(world: &World) -> Result<[Scrape; 2]> {
    Ok([Scrape::of(&world.lab.gateway)?, Scrape::of(&world.lab.cloud)?])
}

fn follow_the_traffic(world: &World, before: &[Scrape; 2]) -> Result<()> {
    let since = |now: &Scrape, before: &Scrape, metric: &str| {
        let sum = |scrape: &Scrape| scrape.sum(metric, &[]).unwrap_or(0.0);
        sum(now) - sum(before)
    };
    let [gateway, cloud] = before;
    let moved = |now: &Scrape| {
        since(now, gateway, "polyrail_path_received_bytes_total") > 3.0 * MEGABYTE
            && since(now, gateway, "polyrail_flows_opened_total") >= 1.0
            && since(now, gateway, "polyrail_datagrams_sent_total") >= 20.0
            && since(now, gateway, "polyrail_loop_turn_seconds_count") > 100.0
            && now.sum("polyrail_path_up", &[]) == Some(2.0)
            && now.sum("polyrail_process_resident_memory_bytes", &[]) > Some(MEGABYTE)
    };
    Scrape::until(&world.lab.gateway, "traffic of the gateway", PATIENCE, moved)?;
    let moved = |now: &Scrape| {
        since(now, cloud, "polyrail_path_sent_bytes_total") > 3.0 * MEGABYTE
            && since(now, cloud, "polyrail_path_sent_packets_total") > 1_000.0
            && since(now, cloud, "polyrail_datagrams_received_total") >= 20.0
            && now.sum("polyrail_path_rtt_seconds", &[GATEWAY, "carrier=\"beta\""]) > Some(0.03)
            && now.sum("polyrail_sessions", &["state=\"up\""]) == Some(1.0)
    };
    Scrape::until(&world.lab.cloud, "traffic of the cloud", PATIENCE, moved)?;
    Ok(())
}

fn follow_a_dark_carrier(world: &mut World) -> Result<()> {
    let alpha = "carrier=\"alpha\"";
    let stalled = |now: &Scrape| {
        now.sum("polyrail_path_stalls_total", &[alpha]) >= Some(1.0)
            && now.sum("polyrail_path_attempts_total", &[alpha]) >= Some(2.0)
            && now.sum("polyrail_path_up", &[alpha]) == Some(1.0)
    };
    let file = world.web.add(8_000_000, 2)?;
    let mut download = world.download(&file).start(&world.lab.passenger)?;
    download.wait_for_bytes(500_000)?;
    world.carriers[0].dark_for(&world.lab, Duration::from_secs(3))?;
    download.verify(&file)?;
    Scrape::until(&world.lab.gateway, "a stall of alpha", PATIENCE, stalled)?;
    Ok(())
}

/// The gateway reports every 10 s.
fn show_the_report(world: &World) -> Result<()> {
    let reported = |now: &Scrape| {
        let all = |metric: &str, labels: &[&str]| now.sum(metric, &[labels, &[GATEWAY]].concat());
        all("polyrail_gateway_path_up", &[]) == Some(2.0)
            && all("polyrail_gateway_carriers", &[]) == Some(2.0)
            && all("polyrail_gateway_uptime_seconds", &[]) > Some(1.0)
            && all("polyrail_gateway_datagrams_total", &["event=\"sent\""]) >= Some(20.0)
            && all("polyrail_gateway_path_events_total", &["event=\"stall\""]) >= Some(1.0)
            && all("polyrail_gateway_path_bytes_total", &["direction=\"received\""])
                > Some(6.0 * MEGABYTE)
    };
    let report = Scrape::until(&world.lab.cloud, "the gateway's report", PATIENCE, reported)?;
    let gateway = Scrape::of(&world.lab.gateway)?;
    ensure!(!gateway.has_label("gateway="), "a gateway exports itself alone");
    ensure!(report.sum("polyrail_gateway_reports_ignored_total", &[]) == Some(0.0));
    Ok(())
}
