//! The interception rules while the daemon runs: set up at the start, changed with the address
//! families that the cloud reaches and with passengers' link addresses, and set up again after the
//! carrier of `direct:` recovered or the program that holds them died.
//!
//! ```text
//!   Waiting ──direct carrier has a route──> Holding ──daemon stops──> removed
//!                                           ^     │
//!                                           └─────┘ every second: is the holder alive?
//! ```
//!
//! The daemon starts without the direct carrier's route, because a carrier may be missing at boot;
//! any other error of the rules prevents the start.
//!
//! Every change runs `nft` or `ip`, which may take seconds on an overloaded machine. So after the
//! start a thread applies changes, and the event loop only sends it messages.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use polyrail_config::GatewayConfig;
use polyrail_session::wire::Offer;

use crate::intercept::{InterceptError, Interception, Plan};

/// How often the program that holds the rules is checked.
pub const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Delay before a failed change is retried.
pub const RETRY_EVERY: Duration = Duration::from_secs(2);

/// The daemon's interception. Dropping it removes or keeps the rules, as `on_exit` says, and waits
/// for the thread.
#[derive(Debug)]
pub struct Diversion {
    /// `None` once the worker should end.
    worker: Option<(Sender<Message>, JoinHandle<()>)>,
}

impl Diversion {
    /// Sets the rules up, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// An error that the operator must correct; a missing route of the direct carrier is none.
    pub fn start(now: Instant, config: &GatewayConfig) -> Result<Self, InterceptError> {
        let plan = Plan::from_config(config)?;
        let mut keeper = Keeper::new(plan);
        match keeper.begin() {
            Ok(()) => {}
            Err(error @ InterceptError::DirectRoute(_)) => keeper.fail(now, &error),
            Err(error) => return Err(error),
        }
        let (sender, messages) = channel();
        let worker = thread::Builder::new()
            .name("interception".to_owned())
            .spawn(move || keeper.work(&messages))
            .map_err(InterceptError::Worker)?;
        Ok(Self { worker: Some((sender, worker)) })
    }

    /// The cloud reported its offer; all other traffic is rejected soon.
    pub fn set_offer(&self, offer: Offer) {
        self.send(Message::Offer(offer));
    }

    /// A carrier came up after it was down: its interface may have lost its routes and ours. They
    /// are renewed soon.
    pub fn carrier_up(&self) {
        self.send(Message::CarrierUp);
    }

    fn send(&self, message: Message) {
        if let Some((sender, _)) = &self.worker {
            // It fails only if the worker panicked, which is reported at the end.
            let _ = sender.send(message);
        }
    }
}

impl Drop for Diversion {
    fn drop(&mut self) {
        let Some((sender, worker)) = self.worker.take() else { return };
        drop(sender);
        if worker.join().is_err() {
            tracing::error!("interception thread panicked");
        }
    }
}

/// A message to the worker, which ends when the sender is dropped.
#[derive(Clone, Copy, Debug)]
enum Message {
    /// What the cloud reaches and carries.
    Offer(Offer),
    /// A carrier came up after it was down.
    CarrierUp,
}

/// The rules and their pending changes; lives in the worker's thread.
struct Keeper {
    plan: Plan,
    held: Option<Interception>,
    /// What the cloud reaches and carries, once reported.
    offer: Option<Offer>,
    /// The direct carrier's route must be renewed.
    stale: bool,
    retry_at: Option<Instant>,
    /// The last logged failure.
    told: Option<String>,
}

impl Keeper {
    fn new(plan: Plan) -> Self {
        Self { plan, held: None, offer: None, stale: false, retry_at: None, told: None }
    }

    fn work(mut self, messages: &Receiver<Message>) {
        loop {
            match messages.recv_timeout(WATCH_EVERY) {
                Ok(message) => {
                    self.take(message);
                    messages.try_iter().for_each(|message| self.take(message));
                }
                Err(RecvTimeoutError::Timeout) => {
                    if self.retry_at.is_some_and(|at| Instant::now() < at) {
                        continue;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
            match self.settle() {
                Ok(()) => (self.retry_at, self.told) = (None, None),
                Err(error) => self.fail(Instant::now(), &error),
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Offer(offer) => self.offer = Some(offer),
            Message::CarrierUp => self.stale |= self.plan.direct.is_some(),
        }
    }

    /// Applies pending changes; without any, it costs a few system calls.
    fn settle(&mut self) -> Result<(), InterceptError> {
        if self.held.is_none() {
            self.begin()?;
            tracing::info!("interception enabled");
        }
        let Some(held) = &mut self.held else { return Ok(()) };
        if held.watch()? {
            tracing::warn!(
                "the program that holds the interception rules died; the rules were set up again"
            );
        }
        if let Some(offer) = self.offer {
            held.set_offer(offer)?;
        }
        if self.stale {
            held.refresh()?;
            self.stale = false;
        }
        held.bind_senders()
    }

    fn begin(&mut self) -> Result<(), InterceptError> {
        self.held = Some(Interception::start(self.plan.clone(), self.plan.on_exit)?);
        self.stale = false;
        Ok(())
    }

    /// Logs a failure unless it is the same as the last one.
    fn fail(&mut self, now: Instant, error: &InterceptError) {
        self.retry_at = Some(now + RETRY_EVERY);
        let text = error.to_string();
        if self.told.as_ref() != Some(&text) {
            tracing::warn!(%error, "cannot set up interception, retrying");
            self.told = Some(text);
        }
    }
}
