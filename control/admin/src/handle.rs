//! The data plane's handle of the control thread. Only dropping it blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use polyrail_config::Tables;
use tokio::sync::{Notify, mpsc};

use super::{Command, Event, Timestamp};

/// A handle of the control thread. Dropping it stops the thread and removes the socket's file.
#[derive(Debug)]
pub struct AdminHandle<C: Tables> {
    commands: Receiver<Command<C>>,
    /// Dropped to stop the thread.
    events: Option<mpsc::Sender<(Timestamp, Event)>>,
    lost: Arc<AtomicU64>,
    reload: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

/// The control thread's ends of the channels.
#[derive(Debug)]
pub(super) struct Channels<C: Tables> {
    pub(super) commands: SyncSender<Command<C>>,
    pub(super) events: mpsc::Receiver<(Timestamp, Event)>,
    /// Events dropped because the channel was full.
    pub(super) lost: Arc<AtomicU64>,
    /// Requests of a reload.
    pub(super) reload: Arc<Notify>,
}

/// The maximum number of queued commands; beyond, a request is refused as `busy`.
pub const COMMANDS_MAX: usize = 64;

/// The maximum number of queued events; further ones are dropped and counted.
pub const EVENTS_WAITING_MAX: usize = 1024;

impl<C: Tables> AdminHandle<C> {
    pub(super) fn pair() -> (Self, Channels<C>) {
        let (command_sender, commands) = sync_channel(COMMANDS_MAX);
        let (event_sender, events) = mpsc::channel(EVENTS_WAITING_MAX);
        let (lost, reload) = (Arc::<AtomicU64>::default(), Arc::<Notify>::default());
        let channels = Channels {
            commands: command_sender,
            events,
            lost: lost.clone(),
            reload: reload.clone(),
        };
        (Self { commands, events: Some(event_sender), lost, reload, thread: None }, channels)
    }

    pub(super) fn set_thread(&mut self, thread: JoinHandle<()>) {
        self.thread = Some(thread);
    }

    /// The next command. Call it until it returns `None` whenever the waker woke the loop.
    pub fn try_recv(&self) -> Option<Command<C>> {
        self.commands.try_recv().ok()
    }

    /// Publishes an event on the stream. The control thread itself publishes [`Event::Started`],
    /// [`Event::Reloaded`], [`Event::ReloadRefused`], [`Event::LinkChanged`] and
    /// [`Event::EventsLost`]. If the channel is full, the event is dropped and counted.
    pub fn publish(&self, event: Event) {
        let Some(events) = &self.events else { return };
        if events.try_send((Timestamp::now(), event)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests a reload, for SIGHUP. A valid configuration arrives as [`Command::Reload`]; the
    /// outcome is logged. Requests during a reload cause one more reload after it.
    pub fn request_reload(&self) {
        self.reload.notify_one();
    }
}

impl<C: Tables> Drop for AdminHandle<C> {
    fn drop(&mut self) {
        self.events = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
