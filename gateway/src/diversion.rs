//! The interception rules while the daemon runs: set up at the start, changed with the address
//! families that the cloud reaches, with passengers' link addresses and with the carriers that
//! `direct:` traffic may use, and set up again after the program that holds them died.
//!
//! An error of the rules prevents the daemon's start. A missing route of `direct:` is none, because
//! a carrier may be missing at boot: until then that traffic is rejected.
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

/// How often the bridges among the intercepted interfaces are examined.
pub const BRIDGES_EVERY: Duration = Duration::from_secs(60);

/// Delay before a failed change is retried.
pub const RETRY_EVERY: Duration = Duration::from_secs(2);

/// The daemon's interception. Dropping it removes or keeps the rules, as `on_exit` says, and waits
/// for the thread.
#[derive(Debug)]
pub struct Diversion {
    /// The interfaces for `direct:` traffic that the worker has last received.
    direct: Option<Vec<String>>,
    /// `None` once the worker should end.
    worker: Option<(Sender<Message>, JoinHandle<()>)>,
}

impl Diversion {
    /// Sets the rules up, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// An error that the operator must correct; a missing route of `direct:` is none.
    pub fn start(config: &GatewayConfig) -> Result<Self, InterceptError> {
        let plan = Plan::from_config(config)?;
        let (direct, on_exit) = (plan.direct.clone(), plan.on_exit);
        let keeper = Keeper::new(Interception::start(plan, on_exit)?);
        let (sender, messages) = channel();
        let worker = thread::Builder::new()
            .name("interception".to_owned())
            .spawn(move || keeper.work(&messages))
            .map_err(InterceptError::Worker)?;
        Ok(Self { direct, worker: Some((sender, worker)) })
    }

    /// The cloud reported its offer; all other traffic is rejected soon.
    pub fn set_offer(&self, offer: Offer) {
        self.send(Message::Offer(offer));
    }

    /// An interface of a carrier may have lost its routes and ours, or have got others. Ours are
    /// renewed soon.
    pub fn routes_changed(&self) {
        if self.direct.is_some() {
            self.send(Message::Routes);
        }
    }

    /// Whether the rules have `direct:` traffic.
    pub fn has_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// The interfaces that `direct:` traffic may use now, best first. Call it whenever they may
    /// have changed.
    pub fn set_direct(&mut self, interfaces: Vec<String>) {
        if self.direct.as_ref().is_some_and(|known| *known != interfaces) {
            self.send(Message::Direct(interfaces.clone()));
            self.direct = Some(interfaces);
        }
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
#[derive(Clone, Debug)]
enum Message {
    /// What the cloud reaches and carries.
    Offer(Offer),
    /// The routes of `direct:` may have changed.
    Routes,
    /// The interfaces for `direct:` traffic, best first.
    Direct(Vec<String>),
}

/// The rules and their pending changes; lives in the worker's thread.
struct Keeper {
    held: Interception,
    /// What the cloud reaches and carries, once reported.
    offer: Option<Offer>,
    /// The route of `direct:` must be renewed.
    stale: bool,
    retry_at: Option<Instant>,
    /// The last logged failure.
    told: Option<String>,
    /// The logged bridges that lose connections, and when to look again.
    losing: Vec<String>,
    bridges_at: Instant,
}

impl Keeper {
    fn new(held: Interception) -> Self {
        let stale = !held.uses_best();
        let (losing, bridges_at) = (Vec::new(), Instant::now());
        Self { held, offer: None, stale, retry_at: None, told: None, losing, bridges_at }
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
            self.look_at_bridges(Instant::now());
            match self.settle() {
                Ok(()) => (self.retry_at, self.told) = (None, None),
                Err(error) => self.fail(Instant::now(), &error),
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Offer(offer) => self.offer = Some(offer),
            Message::Routes => self.stale = true,
            Message::Direct(interfaces) => {
                self.held.set_direct(interfaces);
                self.stale = true;
            }
        }
    }

    /// Logs the bridges that lose connections, when they change. Docker may enable the setting
    /// after our start.
    fn look_at_bridges(&mut self, now: Instant) {
        if now < self.bridges_at {
            return;
        }
        self.bridges_at = now + BRIDGES_EVERY;
        let losing = self.held.losing_bridges();
        for text in losing.iter().filter(|text| !self.losing.contains(text)) {
            tracing::error!("{text}");
        }
        self.losing = losing;
    }

    /// Applies pending changes; without any, it costs a few system calls.
    fn settle(&mut self) -> Result<(), InterceptError> {
        let held = &mut self.held;
        if held.watch()? {
            tracing::warn!(
                "the program that holds the interception rules died; the rules were set up again"
            );
        }
        if let Some(offer) = self.offer {
            held.set_offer(offer)?;
        }
        held.bind_senders()?;
        if self.stale {
            // An interface gets its routes some time after it came up, one family after the other.
            let differ = held.refresh()?;
            self.stale = differ || !held.uses_best();
        }
        Ok(())
    }

    /// Logs a failure unless it is the same as the last one.
    fn fail(&mut self, now: Instant, error: &InterceptError) {
        self.retry_at = Some(now + RETRY_EVERY);
        let text = error.to_string();
        if self.told.as_ref() != Some(&text) {
            match error {
                InterceptError::DirectRoute(_) => {
                    tracing::warn!(%error, "traffic of `direct:` is rejected, retrying");
                }
                _ => tracing::warn!(%error, "cannot change interception, retrying"),
            }
            self.told = Some(text);
        }
    }
}
