//! Random worlds and their faults from a seed.
//!
//! A seed determines the carriers, both sides' settings, and a sequence of operations: flows open,
//! write, end and reset; readers stall; carriers go dark, lose packets, break and change address;
//! either side restarts. Then the faults end, and every flow must end in bounded virtual time.

mod operations;
mod plan;
mod runs;

pub use operations::{WorldRun, run};
pub use plan::Plan;
pub use runs::{Summary, run_many};
