//! `extended_reinjection`: returns the data in flight on a path that times out to its flows.
//!
//! Rule: POLYCORN 4.5. At the k-th consecutive timeout (k = 3) all unacknowledged data of the path
//! goes back to the flows' buffers. The chain then decides again, and the mask of paths that
//! carried a segment keeps it off this path.

use std::time::Instant;

use crate::params::{ParamError, Reader};
use crate::{Handler, PathView};

#[derive(Clone, Copy, Debug)]
pub struct ExtendedReinjection {
    timeouts: u32,
}

impl ExtendedReinjection {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        Ok(Self { timeouts: params.count("timeouts", 3, 1..=100)? as u32 })
    }
}

impl Handler for ExtendedReinjection {
    fn gives_back(&mut self, path: &PathView, _now: Instant) -> bool {
        path.timeouts >= self.timeouts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChainSpec;
    use crate::samples::{base, path};

    #[test]
    fn the_third_timeout_counts() {
        let after = |rule: &str, timeouts| {
            let path = PathView { timeouts, ..path(1, 40) };
            ChainSpec::of(&["min_rtt", rule]).unwrap().build().gives_back(&path, base())
        };
        let given: Vec<bool> = (0..5).map(|k| after("extended_reinjection", k)).collect();
        assert_eq!(given, [false, false, false, true, true]);
        assert!(after("extended_reinjection(timeouts=1)", 1));
        assert!(!after("min_rtt", 9));
    }
}
