//! Several worlds, each on a thread of its own, which measure in turns or together.
//!
//! Compared speeds are measured in turns, so that other load on the machine affects all alike.
//! Measurements that mostly wait run together.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result};

use crate::world::{Plan, World};

/// Running worlds, each ready to measure.
pub(crate) struct Worlds<T> {
    stations: Vec<Station<T>>,
}

struct Station<T> {
    /// Dropped first, so that the thread ends.
    rounds: Option<Sender<usize>>,
    answers: Receiver<Result<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Worlds<T> {
    /// Sets up a world for each plan, one after the other. `prepare` gets the world and its number,
    /// and returns the state that `measure` keeps between rounds.
    pub(crate) fn start<S: 'static>(
        plans: &[Plan],
        prepare: impl Fn(&mut World, usize) -> Result<S> + Send + Sync + 'static,
        measure: impl Fn(&mut World, &mut S, usize) -> Result<T> + Send + Sync + 'static,
    ) -> Result<Self> {
        let (prepare, measure) = (Arc::new(prepare), Arc::new(measure));
        let stations = plans.iter().enumerate().map(|(number, plan)| {
            let (plan, prepare, measure) = (plan.clone(), prepare.clone(), measure.clone());
            let (rounds, asked) = channel();
            let (answers_to, answers) = channel();
            let (ready_to, ready) = channel();
            let thread = std::thread::spawn(move || {
                let made = World::start(&plan).and_then(|mut world| {
                    let kept = prepare(&mut world, number).inspect_err(|_| show(&world))?;
                    Ok((world, kept))
                });
                let (mut world, mut kept) = match made {
                    Ok(made) => made,
                    Err(error) => return drop(ready_to.send(Err(error))),
                };
                let _ = ready_to.send(Ok(()));
                for round in asked {
                    let outcome = measure(&mut world, &mut kept, round);
                    // Fails if the caller no longer waits.
                    let _ = answers_to.send(outcome.inspect_err(|_| show(&world)));
                }
            });
            ready.recv().context("a world's thread ended")??;
            Ok(Station { rounds: Some(rounds), answers, thread: Some(thread) })
        });
        Ok(Self { stations: stations.collect::<Result<_>>()? })
    }

    /// One round in which the worlds measure one after another.
    ///
    /// # Errors
    /// A world cannot measure.
    pub(crate) fn in_turns(&self, round: usize) -> Result<Vec<T>> {
        let one = |station: &Station<T>| {
            station.ask(round)?;
            station.answer()
        };
        // Every other round is in reverse order, so that none is always first.
        if round.is_multiple_of(2) {
            return self.stations.iter().map(one).collect();
        }
        let mut backwards = self.stations.iter().rev().map(one).collect::<Result<Vec<_>>>()?;
        backwards.reverse();
        Ok(backwards)
    }

    /// One round of all worlds at the same time.
    ///
    /// # Errors
    /// A world cannot measure; the other ones still finish.
    pub(crate) fn together(&self, round: usize) -> Result<Vec<T>> {
        self.stations.iter().try_for_each(|station| station.ask(round))?;
        let answers: Vec<_> = self.stations.iter().map(Station::answer).collect();
        answers.into_iter().collect()
    }
}

impl<T> Station<T> {
    fn ask(&self, round: usize) -> Result<()> {
        let rounds = self.rounds.as_ref().context("no world")?;
        rounds.send(round).context("a world's thread ended")
    }

    fn answer(&self) -> Result<T> {
        self.answers.recv().context("a world's thread ended")?
    }
}

impl<T> Drop for Station<T> {
    fn drop(&mut self) {
        self.rounds = None;
        if let Some(thread) = self.thread.take() {
            // A panic in it has already been printed.
            let _ = thread.join();
        }
    }
}

/// Prints the ends of all logs.
fn show(world: &World) {
    eprintln!("{}", world.tails());
}
