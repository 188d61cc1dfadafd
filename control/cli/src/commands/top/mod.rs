//! `polyrail top`: a running daemon live, in a terminal or as one frame of text.
//!
//! A thread asks the daemon, so that keys work while the daemon is slow. [`state`] turns two polls
//! into rates and handles keys; [`draw`] shows them.

mod answers;
mod draw;
mod rows;
mod state;
mod tab;

use std::io::{self, IsTerminal, Write};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use clap::Args;
use polyrail_admin::client::AdminClient;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::answers::Answers;
use self::state::State;
use self::tab::Tab;
use super::admin::Connection;

/// `polyrail top`.
#[derive(Args)]
pub(crate) struct Top {
    /// Seconds between two polls of the daemon
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// The list below the carriers
    #[arg(long, value_enum, default_value_t = Tab::Users)]
    tab: Tab,
    /// Print one frame after two polls, and exit
    #[arg(long)]
    once: bool,
    /// The size of that frame, as COLUMNSxROWS
    #[arg(long, requires = "once", default_value = "80x24")]
    size: Size,
    #[command(flatten)]
    connection: Connection,
}

/// The size of a frame, in cells.
#[derive(Clone, Copy)]
struct Size(u16, u16);

impl FromStr for Size {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let number = |text: &str| text.parse().ok().filter(|cells| (20..=1_000).contains(cells));
        let parts = text.split_once('x').and_then(|(x, y)| Some(Self(number(x)?, number(y)?)));
        parts.ok_or("expected COLUMNSxROWS, each 20 to 1000")
    }
}

/// Shows a daemon until the operator quits, or once.
pub(crate) fn run(arguments: &Top, out: &mut dyn Write) -> anyhow::Result<bool> {
    anyhow::ensure!(!arguments.connection.json, "top shows no JSON: use status, paths or flows");
    let mut state = State::new(arguments.tab);
    if arguments.once {
        return once(arguments, state, out);
    }
    anyhow::ensure!(io::stdout().is_terminal(), "top needs a terminal: use --once");
    // Errors of the first poll are those of any command.
    let first = Answers::ask(&arguments.connection.client()?, state.tab())?;
    state.take(first);
    let (wish, wishes) = channel();
    let (sender, answers) = channel();
    let client = arguments.connection.client()?;
    let every = Duration::from_secs_f64(arguments.interval);
    // It ends with the process or with its channel.
    let tab = state.tab();
    std::thread::spawn(move || poll(&client, (tab, every), &wishes, &sender));
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, &mut state, &wish, &answers);
    ratatui::try_restore()?;
    shown.map(|()| true)
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    state: &mut State,
    wish: &Sender<Tab>,
    answers: &Receiver<anyhow::Result<Answers>>,
) -> anyhow::Result<()> {
    loop {
        let mut scroll = 0;
        terminal.draw(|frame| scroll = draw::draw(frame, state))?;
        state.scroll = scroll;
        if event::poll(KEY_WAIT)?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            let tab = state.tab();
            if !state.on_key(key) {
                return Ok(());
            }
            if state.tab() != tab {
                let _ = wish.send(state.tab());
            }
        }
        for answer in answers.try_iter() {
            match answer {
                Ok(answers) => state.take(answers),
                Err(error) => state.fail(&error),
            }
        }
    }
}

/// Asks the daemon again and again; at once when another list is wished for.
fn poll(
    client: &AdminClient,
    (mut tab, every): (Tab, Duration),
    wishes: &Receiver<Tab>,
    answers: &Sender<anyhow::Result<Answers>>,
) {
    loop {
        let due = Instant::now() + every;
        if answers.send(Answers::ask(client, tab)).is_err() {
            return;
        }
        match wishes.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(wished) => tab = wishes.try_iter().last().unwrap_or(wished),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Prints one frame as text.
fn once(arguments: &Top, mut state: State, out: &mut dyn Write) -> anyhow::Result<bool> {
    let client = arguments.connection.client()?;
    state.take(Answers::ask(&client, state.tab())?);
    std::thread::sleep(Duration::from_secs_f64(arguments.interval));
    state.take(Answers::ask(&client, state.tab())?);
    let Size(columns, rows) = arguments.size;
    for line in frame(&state, columns, rows)? {
        writeln!(out, "{line}")?;
    }
    Ok(true)
}

/// The lines of a frame of this size.
fn frame(state: &State, columns: u16, rows: u16) -> anyhow::Result<Vec<String>> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows))?;
    terminal.draw(|frame| _ = draw::draw(frame, state))?;
    let cells = terminal.backend().buffer().content();
    let line = |row: &[ratatui::buffer::Cell]| {
        let text: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.trim_end().to_owned()
    };
    Ok(cells.chunks(columns.into()).map(line).collect())
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.2..=60.0).contains(seconds));
    seconds.ok_or("expected 0.2 to 60".to_owned())
}

/// How long a key is waited for before the daemon's answers are looked at.
const KEY_WAIT: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
