//! A gateway's report, as a cloud decodes it.
//!
//! Promises: nothing panics, a decoded report is within its bounds, and it survives encoding.

use std::collections::BTreeSet;

use polyrail_admin::metrics::{GatewayReport, REPORT_MAX};

/// Decodes the bytes.
pub fn gateway_report(data: &[u8]) {
    let Ok(Some(report)) = GatewayReport::decode(data) else { return };
    let names: BTreeSet<&str> = report.carriers.iter().map(|one| one.name.as_str()).collect();
    assert!(names.len() == report.carriers.len() && names.len() <= 16, "{names:?}");
    let printable = |name: &&str| (1..=32).contains(&name.len()) && !name.contains('\n');
    assert!(names.iter().all(printable), "{names:?}");
    let again = report.encode();
    assert!(again.len() <= REPORT_MAX);
    // A longer payload than a message may have more carriers than the encoder writes.
    if data.len() <= REPORT_MAX {
        assert_eq!(GatewayReport::decode(&again), Ok(Some(report)));
    }
}
