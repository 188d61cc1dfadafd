//! Progress on a terminal, redrawn in place; without one, a few plain lines.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Without a terminal, a carrier has a line so often.
const PLAIN_EVERY: Duration = Duration::from_secs(1);
const BAR: usize = 30;

/// One carrier on the screen.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    /// The bytes it has carried, as a share of the file.
    pub(super) share: f64,
    pub(super) mbit_s: f64,
    pub(super) dark: bool,
}

/// Where progress is shown.
#[derive(Debug)]
pub(super) struct Screen {
    terminal: bool,
    /// Rows that stand on the terminal and are to be overwritten.
    drawn: usize,
    last: Option<Instant>,
}

impl Screen {
    pub(super) fn new() -> Screen {
        Screen { terminal: std::io::stdout().is_terminal(), drawn: 0, last: None }
    }

    /// Redraws the carriers.
    pub(super) fn show(&mut self, rows: &[Row]) {
        if !self.terminal {
            if self.last.is_some_and(|last| last.elapsed() < PLAIN_EVERY) {
                return;
            }
            self.last = Some(Instant::now());
        }
        let mut text = self.up();
        for row in rows {
            text.push_str("  ");
            text.push_str(&line(row));
            text.push_str(if self.terminal { "\x1b[K\n" } else { "\n" });
        }
        self.drawn = rows.len();
        print(&text);
    }

    /// Says something above the carriers.
    pub(super) fn say(&mut self, words: &str) {
        let end = if self.terminal { "\x1b[K\n" } else { "\n" };
        let text = format!("{}  {words}{end}", self.up());
        self.drawn = 0;
        self.last = None;
        print(&text);
    }

    /// Keeps the rows on the screen.
    pub(super) fn finish(&mut self) {
        self.drawn = 0;
    }

    fn up(&self) -> String {
        if self.terminal && self.drawn > 0 {
            format!("\x1b[{}A", self.drawn)
        } else {
            String::new()
        }
    }
}

fn line(row: &Row) -> String {
    let filled = ((row.share * BAR as f64) as usize).min(BAR);
    let rate = if row.dark { "dark".into() } else { format!("{:>6.1} Mbit/s", row.mbit_s) };
    format!(
        "{:<8} [{}{}] {:>3.0} %  {rate}",
        row.name,
        "#".repeat(filled),
        ".".repeat(BAR - filled),
        row.share * 100.0
    )
}

fn print(text: &str) {
    let mut output = std::io::stdout();
    // Nobody may be reading; the demonstration goes on.
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_full_at_most_and_the_rate_is_shown_unless_dark() {
        let row = |share, dark| Row { name: "alpha".into(), share, mbit_s: 19.96, dark };
        let over = line(&row(1.3, false));
        assert!(over.contains(&format!("[{}]", "#".repeat(BAR))), "{over}");
        assert!(over.contains("20.0 Mbit/s"), "{over}");
        let dark = line(&row(0.5, true));
        assert!(dark.contains("dark") && !dark.contains("Mbit/s"), "{dark}");
    }
}
