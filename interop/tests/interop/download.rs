//! A browser-like client downloads over two carriers at once.

use std::time::Duration;

use anyhow::{Result, ensure};
use polyrail_interop::addresses::{Family, SERVER};
use polyrail_interop::exchange::{Ending, Exchange, Verdicts};
use polyrail_interop::world::{Plan, World};
use polyrail_interop::{carrier, client};

use crate::{in_both_modes, scenario};

const BOUND: Duration = Duration::from_secs(20);
const SIZE: u64 = 4_000_000;
const PORT: u16 = 3000;

#[test]
fn intercepted_by_name_uses_both_carriers() -> Result<()> {
    in_both_modes(&Plan::twins(), BOUND, |world| {
        Family::BOTH.into_iter().try_for_each(|family| intercepted(world, family))
    })
}

fn intercepted(world: &mut World, family: Family) -> Result<()> {
    let file = world.web.add(SIZE, 1)?;
    let before = world.carried()?;
    let report = world.download(&file).family(family).verify(&world.lab.passenger, &file)?;
    ensure!(report.remote_ip == SERVER.of(family).to_string(), "went to {}", report.remote_ip);
    let after = world.carried()?;
    for (carrier, (before, after)) in world.carriers.iter().zip(before.iter().zip(&after)) {
        let share = (after - before) as f64 / SIZE as f64;
        println!("{} carried {share:.2}", carrier.name());
        ensure!(share > 0.2, "{} carried only {share:.2} of the file", carrier.name());
    }
    Ok(())
}

#[test]
fn an_upload_uses_both_carriers() -> Result<()> {
    in_both_modes(&Plan::twins(), BOUND, |world| {
        let verdicts = Verdicts::default();
        let to = SERVER.at(Family::V6, PORT);
        verdicts.serve(&world.lab.server, to)?;
        let exchange = Exchange { seed: 7, up: SIZE, down: 1000, ending: Ending::ClientFirst };
        exchange.perform(client::connect(&world.lab.passenger, to)?)?;
        verdicts.verdict(&exchange, BOUND)?;
        for carrier in carrier::counters(&world.lab)? {
            let share = carrier.up_bytes as f64 / SIZE as f64;
            println!("{} carried {share:.2}", carrier.carrier);
            ensure!(share > 0.2, "{} carried only {share:.2}", carrier.carrier);
        }
        Ok(())
    })
}

#[test]
fn through_socks5_by_address_and_by_name() -> Result<()> {
    in_both_modes(&Plan::twins(), BOUND, |world| {
        let file = world.web.add(SIZE, 2)?;
        let proxy = world.proxy();
        let name = world.download(&file).socks5_with_names(proxy);
        name.verify(&world.lab.passenger, &file)?;
        for family in Family::BOTH {
            let by_address = world.download_from(&SERVER.host(family), &file).socks5(proxy);
            by_address.verify(&world.lab.passenger, &file)?;
        }
        Ok(())
    })
}

#[test]
fn tunnels_use_bbr_in_both_directions_whatever_the_kernels_default() -> Result<()> {
    let plan = Plan::twins().gateway("mode", "tls");
    let plan = plan.sysctl("net.ipv4.tcp_congestion_control", "reno");
    scenario(&plan, BOUND, |world| {
        for (side, port) in [(&world.lab.gateway, "dport"), (&world.lab.cloud, "sport")] {
            let sockets = side.tool("ss", &format!("-tinH state established {port} = :4433"))?;
            println!("{sockets}");
            ensure!(
                sockets.matches(" bbr wscale").count() == 2,
                "not two tunnels with bbr:\n{sockets}"
            );
        }
        Ok(())
    })
}
