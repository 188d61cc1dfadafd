//! The lab itself: plain TCP over emulated carriers, without Polyrail.

use std::time::Duration;

use anyhow::{Result, ensure};
use polyrail_interop::addresses::{CLOUD, Family};
use polyrail_interop::carrier::{self, CarrierPlan, Link, Medium};
use polyrail_interop::download::Download;
use polyrail_interop::lab::Lab;
use polyrail_interop::programs::Programs;
use polyrail_interop::web::WebServer;

#[test]
fn curl_is_bound_to_each_carrier_and_runs_at_its_rate() -> Result<()> {
    crate::alone(|| {
        let lab = Lab::new()?;
        let plan = |name: &str, mbit_s| {
            let medium = Medium::Link(Link::new(mbit_s, 40));
            CarrierPlan { name: name.into(), medium }
        };
        let plans = [plan("alpha", 20.0), plan("beta", 10.0)];
        let (carriers, _emulator) = carrier::start(&lab, &Programs::find()?, &plans)?;
        let web = WebServer::start(&lab.cloud, lab.folder(), 80)?;
        let file = web.add(2_000_000, 1)?;
        for (carrier, rate) in carriers.iter().zip([20.0, 10.0]) {
            for family in Family::BOTH {
                let before = carrier::counters(&lab)?;
                let target = lab.folder().join("target");
                let report = Download::new(&CLOUD.host(family), &file.name, &target)
                    .interface(&carrier.interface())
                    .limit(Duration::from_secs(30))
                    .verify(&lab.gateway, &file)?;
                let after = carrier::counters(&lab)?;
                println!("{} {family:?}: {:.2} Mbit/s", carrier.name(), report.mbit_s());
                ensure!(report.mbit_s() < rate, "{} is faster than its link", carrier.name());
                for (before, after) in before.iter().zip(&after) {
                    let used = after.down_bytes - before.down_bytes >= file.size;
                    ensure!(used == (after.carrier == carrier.name()), "{after:?}");
                }
            }
        }
        Ok(())
    })
}
