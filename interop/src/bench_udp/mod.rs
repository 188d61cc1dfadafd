//! The figures of passengers' datagrams over links that do not change. Those on the rail are
//! workloads of `polyrail-lab rail`.

mod call;
mod many;
mod stream;
mod unlike;

use crate::bench::Suite;

/// The figures of `make bench-udp` over steady links.
pub const SUITE: Suite = Suite {
    file: "udp",
    check: || Ok(()),
    benchmarks: &[
        ("unlike", unlike::endless),
        ("download", unlike::downloads),
        ("fast", stream::fast),
        ("fair", stream::fair),
        ("call", call::run),
        ("many", many::run),
    ],
};
