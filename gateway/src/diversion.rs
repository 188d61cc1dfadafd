//! The interception rules over the daemon's life: set up at the start, changed with what the cloud
//! reaches, set up anew when the carrier of `direct:` came back or the program that holds them
//! died.
//!
//! ```text
//!   Waiting ──the direct carrier's route is there──> Holding ──end of the daemon──> gone
//!                                                    ^     │
//!                                                    └─────┘ every second: does the holder live?
//! ```
//!
//! Only a missing route is waited for, as a carrier may be missing at boot; whatever else is wrong
//! with the rules keeps the daemon from starting.
//!
//! Every change runs `nft` or `ip` and waits for it, up to seconds on a machine in trouble. So
//! after the start a thread of its own does all of it, and the caller, whose loop moves the flows,
//! only leaves word: the latest word of each kind, so that nothing piles up and nothing waits.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use polyrail_config::GatewayConfig;
use polyrail_model::Families;

use crate::intercept::{InterceptError, Interception, Other, Plan};

/// How often the program that holds the rules is looked at.
pub const WATCH_EVERY: Duration = Duration::from_secs(1);

/// How long after a failed change it is tried again.
pub const RETRY_EVERY: Duration = Duration::from_secs(2);

/// The daemon's interception. Dropping it ends it as the configuration's `on_exit` says, and waits
/// for that.
#[derive(Debug)]
pub struct Diversion {
    desk: Arc<Desk>,
    worker: Option<JoinHandle<()>>,
}

impl Diversion {
    /// Sets the rules up, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// Whatever the operator must mend; a missing route of the direct carrier is none of it.
    pub fn start(now: Instant, config: &GatewayConfig) -> Result<Self, InterceptError> {
        let plan = Plan::from_config(config)?;
        let mut keeper = Keeper::new(plan);
        match keeper.begin() {
            Ok(()) => {}
            Err(error @ InterceptError::DirectRoute(_)) => keeper.fail(now, &error),
            Err(error) => return Err(error),
        }
        let desk = Arc::new(Desk::default());
        let theirs = Arc::clone(&desk);
        let worker = thread::Builder::new()
            .name("interception".to_owned())
            .spawn(move || keeper.work(&theirs))
            .map_err(InterceptError::Worker)?;
        Ok(Self { desk, worker: Some(worker) })
    }

    /// The cloud says which address families it reaches; the others are rejected soon.
    pub fn set_families(&self, reachable: Families) {
        self.desk.leave(|word| word.reachable = Some(reachable));
    }

    /// A carrier came up after it was down: its interface may have lost its routes meanwhile, and
    /// with them ours. They are renewed soon.
    pub fn carrier_up(&self) {
        self.desk.leave(|word| word.carrier_up = true);
    }
}

impl Drop for Diversion {
    fn drop(&mut self) {
        self.desk.leave(|word| word.end = true);
        if let Some(worker) = self.worker.take()
            && worker.join().is_err()
        {
            tracing::error!("the interception thread had failed");
        }
    }
}

/// What the worker is to know: the latest word of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Word {
    reachable: Option<Families>,
    carrier_up: bool,
    end: bool,
}

/// Where word is left for the worker.
#[derive(Debug, Default)]
struct Desk {
    word: Mutex<Word>,
    left: Condvar,
}

impl Desk {
    fn leave(&self, write: impl FnOnce(&mut Word)) {
        write(&mut self.lock());
        self.left.notify_one();
    }

    /// Takes the word that was left, or none after [`WATCH_EVERY`].
    fn take(&self) -> Word {
        let idle = |word: &mut Word| *word == Word::default();
        let waited = self.left.wait_timeout_while(self.lock(), WATCH_EVERY, idle);
        let (mut word, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *word)
    }

    fn lock(&self) -> MutexGuard<'_, Word> {
        // A word is whole whoever failed while holding the lock.
        self.word.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rules and what is still to be done to them; lives in the worker's thread.
struct Keeper {
    plan: Plan,
    held: Option<Interception>,
    /// What the cloud reaches, once it has said so.
    reachable: Option<Families>,
    /// The direct carrier's route is to be renewed.
    stale: bool,
    retry_at: Option<Instant>,
    /// The failure that the log heard last.
    told: Option<String>,
}

impl Keeper {
    fn new(plan: Plan) -> Self {
        Self { plan, held: None, reachable: None, stale: false, retry_at: None, told: None }
    }

    fn work(mut self, desk: &Desk) {
        loop {
            let word = desk.take();
            if word.end {
                return;
            }
            let now = Instant::now();
            self.hear(word);
            if word == Word::default() && self.retry_at.is_some_and(|at| now < at) {
                continue;
            }
            match self.settle() {
                Ok(()) => (self.retry_at, self.told) = (None, None),
                Err(error) => self.fail(Instant::now(), &error),
            }
        }
    }

    fn hear(&mut self, word: Word) {
        self.reachable = word.reachable.or(self.reachable);
        self.stale |= word.carrier_up && matches!(self.plan.other(), Other::Direct { .. });
    }

    /// Does whatever is to be done; when all is well, one system call.
    fn settle(&mut self) -> Result<(), InterceptError> {
        if self.held.is_none() {
            self.begin()?;
            tracing::info!("interception begins");
        }
        let Some(held) = &mut self.held else { return Ok(()) };
        if held.watch()? {
            tracing::warn!(
                "the program that holds the interception rules died: they were set anew"
            );
        }
        if let Some(reachable) = self.reachable {
            held.set_families(reachable)?;
        }
        if self.stale {
            held.refresh()?;
            self.stale = false;
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), InterceptError> {
        self.held = Some(Interception::start(self.plan.clone(), self.plan.on_exit())?);
        self.stale = false;
        Ok(())
    }

    /// Tells the log, but not of the same failure again and again.
    fn fail(&mut self, now: Instant, error: &InterceptError) {
        self.retry_at = Some(now + RETRY_EVERY);
        let text = error.to_string();
        if self.told.as_ref() != Some(&text) {
            tracing::warn!(%error, "interception waits, and is tried again");
            self.told = Some(text);
        }
    }
}
