//! The loop that both daemons run, around a [`Shell`] of their own.

use std::io;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

use crate::{Relay, RelayEvent};

/// What a daemon adds to the relay: listeners, dials or carriers, signals.
pub trait Shell {
    /// Handles a readiness event of one of the daemon's own tokens.
    fn on_event(&mut self, now: Instant, relay: &mut Relay, event: &mio::event::Event);

    /// Handles an event of the relay.
    fn on_relay_event(&mut self, now: Instant, relay: &mut Relay, event: RelayEvent);

    /// Runs due work; called once a turn.
    fn on_turn(&mut self, now: Instant, relay: &mut Relay);

    /// When [`Shell::on_turn`] must run without an event.
    fn next_timeout(&self, now: Instant, relay: &Relay) -> Option<Instant>;

    /// Whether the daemon may exit.
    fn is_over(&self) -> bool;
}

/// Runs until the shell is done.
///
/// # Errors
/// The poll fails.
pub fn run(poll: &mut Poll, relay: &mut Relay, shell: &mut dyn Shell) -> io::Result<()> {
    let mut events = Events::with_capacity(EVENTS_MAX);
    let mut began: Option<Instant> = None;
    while !shell.is_over() {
        let now = Instant::now();
        if let Some(began) = began {
            relay.count_turn(now.saturating_duration_since(began));
        }
        let shell_timeout =
            shell.next_timeout(now, relay).map(|at| at.saturating_duration_since(now));
        let timeout = relay.timeout(now).into_iter().chain(shell_timeout).min();
        if let Err(error) = poll.poll(&mut events, timeout.map(round_up)) {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
            events.clear();
        }
        let now = Instant::now();
        began = Some(now);
        for event in &events {
            if !relay.on_event(now, event) {
                shell.on_event(now, relay, event);
            }
        }
        shell.on_turn(now, relay);
        for _ in 0..ROUNDS_MAX {
            relay.turn(now);
            let mut any = false;
            while let Some(event) = relay.poll_event() {
                any = true;
                shell.on_relay_event(now, relay, event);
            }
            if !any {
                break;
            }
        }
    }
    Ok(())
}

/// The poll cannot sleep shorter than a millisecond, and must not wake before a timer is due.
fn round_up(timeout: Duration) -> Duration {
    if timeout.is_zero() { timeout } else { timeout.max(Duration::from_millis(1)) }
}

/// Events per poll.
const EVENTS_MAX: usize = 1024;
/// Rounds of turn and events between two polls.
const ROUNDS_MAX: usize = 4;
