//! All carriers go dark in the middle of downloads.

use std::time::Duration;

use anyhow::{Result, ensure};
use polyrail_interop::bench::darken_all;
use polyrail_interop::world::Plan;

use crate::in_both_modes;

#[test]
fn flows_continue_after_all_carriers_were_dark() -> Result<()> {
    let dark = Duration::from_secs(8);
    in_both_modes(&Plan::twins(), dark + Duration::from_secs(30), |world| {
        let (first, last) = darken_all(world, dark)?;
        println!("first byte {first:?} after the carriers' return, last flow after {last:?}");
        ensure!(first < Duration::from_secs(20), "no byte arrived in time");
        Ok(())
    })
}
