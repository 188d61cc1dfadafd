//! Forwards the observations of telemetry sources to LinkDB's worker.

use std::io;
use std::time::Duration;

use polyrail_control::telemetry::ObservationReceiver;
use polyrail_relay::linkdb::{Feeder, Input};

/// Starts a thread that forwards observations until the worker has ended.
///
/// # Errors
/// The system cannot create a thread.
pub(crate) fn forward(observations: ObservationReceiver, worker: Feeder) -> io::Result<()> {
    let builder = std::thread::Builder::new().name("observations".to_owned());
    builder.spawn(move || {
        while !worker.has_ended() {
            if let Some(observation) = observations.recv_timeout(CHECK_EVERY) {
                worker.feed(Input::Observed(observation));
            }
        }
    })?;
    Ok(())
}

/// Interval at which the thread checks whether the worker has ended.
const CHECK_EVERY: Duration = Duration::from_millis(500);
