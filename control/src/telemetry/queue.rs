//! The bounded queue from the sources to whoever learns from them.
//!
//! Nobody who sends ever waits. A full queue gives up the oldest position first, or what says that
//! a path was heard: the next one comes within a second and says more. Without positions it gives
//! up the oldest serving cell, which is told again as well, and at last what arrives. All that is
//! given up is counted.

use polyrail_model::Observation;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Where observations go in; any thread may hold one.
#[derive(Clone, Debug)]
pub struct ObservationSender(Arc<Queue>);

/// Where observations come out, in the order they went in.
#[derive(Debug)]
pub struct ObservationReceiver(Arc<Queue>);

/// How many observations a queue had no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Positions, and times that a path was heard.
    pub positions: u64,
    /// Serving cells.
    pub cells: u64,
    /// Outcomes of handovers and silences.
    pub others: u64,
}

#[derive(Debug)]
struct Queue {
    room: usize,
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    list: VecDeque<Observation>,
    dropped: Dropped,
}

/// Both ends of a queue that holds `room` observations, at least one.
pub fn observations(room: usize) -> (ObservationSender, ObservationReceiver) {
    let room = room.max(1);
    let queue = Queue { room, waiting: Mutex::default(), arrived: Condvar::new() };
    let queue = Arc::new(queue);
    (ObservationSender(queue.clone()), ObservationReceiver(queue))
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObservationSender {
    /// Puts an observation in the queue. False when something had to be given up for it, or it
    /// was itself.
    pub fn send(&self, observation: Observation) -> bool {
        let mut waiting = self.0.waiting();
        let full = waiting.list.len() >= self.0.room;
        if full && !waiting.make_room() {
            waiting.dropped.count(&observation);
            return false;
        }
        waiting.list.push_back(observation);
        drop(waiting);
        self.0.arrived.notify_one();
        !full
    }

    /// What was given up so far.
    pub fn dropped(&self) -> Dropped {
        self.0.waiting().dropped
    }
}

impl ObservationReceiver {
    /// The next observation, if one waits.
    pub fn try_recv(&self) -> Option<Observation> {
        self.0.waiting().list.pop_front()
    }

    /// The next observation; `None` when none comes in time.
    pub fn recv_timeout(&self, within: Duration) -> Option<Observation> {
        let end = Instant::now().checked_add(within);
        let mut waiting = self.0.waiting();
        loop {
            if let Some(observation) = waiting.list.pop_front() {
                return Some(observation);
            }
            let left = match end {
                Some(end) => end.checked_duration_since(Instant::now())?,
                None => within,
            };
            let woken = self.0.arrived.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What was given up so far.
    pub fn dropped(&self) -> Dropped {
        self.0.waiting().dropped
    }
}

impl Waiting {
    /// Gives up what is least missed; false when all that waits is worth more than that.
    fn make_room(&mut self) -> bool {
        let is_position = |one: &Observation| matches!(rank(one), Rank::Position);
        let is_cell = |one: &Observation| matches!(rank(one), Rank::Cell);
        let oldest = self.list.iter().position(is_position);
        let oldest = oldest.or_else(|| self.list.iter().position(is_cell));
        let Some(gone) = oldest.and_then(|index| self.list.remove(index)) else { return false };
        self.dropped.count(&gone);
        true
    }
}

impl Dropped {
    /// All of them together.
    pub fn total(&self) -> u64 {
        self.positions + self.cells + self.others
    }

    fn count(&mut self, observation: &Observation) {
        let counter = match rank(observation) {
            Rank::Position => &mut self.positions,
            Rank::Cell => &mut self.cells,
            Rank::Other => &mut self.others,
        };
        *counter += 1;
    }
}

enum Rank {
    Position,
    Cell,
    Other,
}

fn rank(observation: &Observation) -> Rank {
    match observation {
        // All of them come again soon.
        Observation::Fix(_) | Observation::Odometer(_) | Observation::Heard(_) => Rank::Position,
        Observation::Serving(_) => Rank::Cell,
        Observation::Reported(_) | Observation::Silence(_) => Rank::Other,
    }
}

#[cfg(test)]
mod tests {
    use polyrail_model::{CellId, Heard, Odometer, RouteId, Serving, Silence};

    use super::*;

    fn position(metres: f64) -> Observation {
        let (at, route) = (Instant::now(), RouteId(1));
        Observation::Odometer(Odometer { at, route, metres, velocity: 0.0, error: 1.0 })
    }

    fn cell(number: u64) -> Observation {
        let cell = Some(CellId(number));
        Observation::Serving(Serving {
            at: Instant::now(),
            carrier: "a".to_owned(),
            cell,
            rsrp: None,
        })
    }

    fn silence() -> Observation {
        let at = Instant::now();
        Observation::Silence(Silence { at, carrier: "a".to_owned(), since: Some(at), kept: None })
    }

    fn heard() -> Observation {
        Observation::Heard(Heard { at: Instant::now(), carrier: "a".to_owned() })
    }

    /// What waits, in a word each.
    fn names(receiver: &ObservationReceiver) -> Vec<String> {
        let name = |observation| match observation {
            Observation::Odometer(odometer) => format!("{}", odometer.metres),
            Observation::Serving(serving) => serving.cell.unwrap().to_string(),
            _ => "silence".to_owned(),
        };
        std::iter::from_fn(|| receiver.try_recv()).map(name).collect()
    }

    #[test]
    fn a_full_queue_gives_up_positions_first() {
        let (sender, receiver) = observations(4);
        for one in [cell(10), position(1.0), position(2.0), silence()] {
            assert!(sender.send(one));
        }
        assert!(!sender.send(position(3.0)));
        assert!(!sender.send(cell(11)));
        assert_eq!(names(&receiver), ["a", "silence", "3", "b"]);
        assert_eq!(receiver.dropped(), Dropped { positions: 2, cells: 0, others: 0 });
    }

    #[test]
    fn what_was_heard_is_worth_as_much_as_a_position() {
        let (sender, receiver) = observations(4);
        for one in [silence(), heard(), position(1.0), cell(10)] {
            assert!(sender.send(one));
        }
        assert!(!sender.send(cell(11)) && !sender.send(silence()));
        assert_eq!(names(&receiver), ["silence", "a", "b", "silence"]);
        assert_eq!(receiver.dropped(), Dropped { positions: 2, cells: 0, others: 0 });
    }

    #[test]
    fn then_cells_and_at_last_what_arrives() {
        let (sender, receiver) = observations(2);
        assert!(sender.send(cell(10)) && sender.send(silence()));
        assert!(!sender.send(silence()));
        assert!(!sender.send(position(1.0)));
        assert!(!sender.send(silence()));
        assert_eq!(names(&receiver), ["silence", "silence"]);
        let dropped = Dropped { positions: 1, cells: 1, others: 1 };
        assert_eq!((sender.dropped(), dropped.total()), (dropped, 3));
    }

    #[test]
    fn who_waits_is_woken() {
        let (sender, receiver) = observations(0);
        assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), None);
        let thread = std::thread::spawn(move || receiver.recv_timeout(Duration::MAX));
        sender.send(position(7.0));
        assert!(matches!(thread.join().unwrap(), Some(Observation::Odometer(_))));
    }
}
