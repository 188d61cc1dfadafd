//! Worlds and their troubles from a seed.
//!
//! A seed fixes the carriers, both sides' settings, and a sequence of operations: flows open,
//! write, end, reset; readers stall; carriers go dark, lose, break and change address; either side
//! restarts. Then the troubles stop, and every flow must end in bounded virtual time.

mod operations;
mod plan;
mod runs;

pub use operations::{WorldRun, run};
pub use plan::Plan;
pub use runs::{Summary, run_many};
