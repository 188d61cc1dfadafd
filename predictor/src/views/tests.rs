//! Views of a fleet's logs, and the forecasts from them.

mod caps;
mod fleet;
mod forecasts;
mod poisoning;
mod rebuilt;
mod tracks;
