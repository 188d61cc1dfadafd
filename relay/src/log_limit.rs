//! Log lines that strangers can cause, kept to a bearable number.

use std::time::{Duration, Instant};

/// Lets `LINES_MAX` lines through in `WINDOW` and counts the others.
#[derive(Debug, Default)]
pub struct Notices {
    window: Option<Instant>,
    lines: u32,
    dropped: u64,
}

impl Notices {
    /// Whether a line may be written now; with how many were left out since the last one that was.
    pub fn permit(&mut self, now: Instant) -> Option<u64> {
        if self.window.is_none_or(|begun| now.saturating_duration_since(begun) >= WINDOW) {
            self.window = Some(now);
            self.lines = 0;
        }
        if self.lines >= LINES_MAX {
            self.dropped += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.dropped))
    }
}

/// Lines that one kind may write in a window.
const LINES_MAX: u32 = 20;
/// The window.
const WINDOW: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_goes_on_in_the_next_window() {
        let mut notices = Notices::default();
        let now = Instant::now();
        let passed = (0..100).filter(|_| notices.permit(now).is_some()).count();
        assert_eq!(passed, LINES_MAX as usize);
        assert_eq!(notices.permit(now + WINDOW), Some(80));
        assert_eq!(notices.permit(now + WINDOW), Some(0));
    }
}
