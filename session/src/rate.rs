//! The delivery rate of a path: the maximum over a second, from the transport's samples.
//!
//! A sample that the application limited shows the offered load, not the rate of the path: it
//! counts only if it exceeds the known rate. The second ends with the newest sample that counts:
//! while the path is idle, the rate stays.

use polyrail_model::{Bitrate, LinkSample};

use crate::window::Window;

/// The delivery rate of one path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rate {
    window: Window<Bitrate>,
}

impl Rate {
    /// Takes a sample.
    pub fn sample(&mut self, sample: &LinkSample) {
        let Some(rate) = sample.delivery_rate else { return };
        let counts = !sample.application_limited || self.max().is_none_or(|known| rate > known);
        if counts {
            self.window.add(sample.at, rate, |max, rate| *max = rate.max(*max));
        }
    }

    /// The rate; `None` before the first sample that counts.
    pub fn max(&self) -> Option<Bitrate> {
        self.window.iter().copied().max()
    }
}

#[cfg(test)]
pub(crate) mod tests;
