//! The data plane's handle of the control thread. Only dropping it blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use polyrail_config::Tables;
use tokio::sync::{Notify, mpsc, watch};

use super::{AdminCommand, AdminEvent, Metered, Timestamp};

/// A handle of the control thread. Dropping it stops the thread and removes the socket's file.
#[derive(Debug)]
pub struct AdminHandle<C: Tables> {
    commands: Receiver<AdminCommand<C>>,
    /// Dropped to stop the thread.
    events: Option<Events>,
    lost: Arc<AtomicU64>,
    reload: Arc<Notify>,
    metered: Option<watch::Sender<Vec<Metered>>>,
    thread: Option<JoinHandle<()>>,
}

/// The way of events to the control thread.
#[derive(Debug)]
enum Events {
    /// Of the first data plane, which ends the thread.
    First(mpsc::Sender<(Timestamp, AdminEvent)>),
    /// Of a further worker's (cloud).
    Further(mpsc::WeakSender<(Timestamp, AdminEvent)>),
}

/// The control thread's ends of the channels.
#[derive(Debug)]
pub(super) struct Channels<C: Tables> {
    pub(super) commands: SyncSender<AdminCommand<C>>,
    pub(super) events: mpsc::Receiver<(Timestamp, AdminEvent)>,
    /// Events dropped because the channel was full.
    pub(super) lost: Arc<AtomicU64>,
    /// Requests of a reload.
    pub(super) reload: Arc<Notify>,
    pub(super) metered: watch::Receiver<Vec<Metered>>,
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
        let (metered, metered_receiver) = watch::channel(Vec::new());
        let channels = Channels {
            commands: command_sender,
            events,
            lost: lost.clone(),
            reload: reload.clone(),
            metered: metered_receiver,
        };
        let (events, metered) = (Some(Events::First(event_sender)), Some(metered));
        (Self { commands, events, lost, reload, metered, thread: None }, channels)
    }

    /// A handle for a further data plane, and the sender of its commands. It does not stop the
    /// thread.
    pub(super) fn further(&self) -> (Self, SyncSender<AdminCommand<C>>) {
        let (sender, commands) = sync_channel(COMMANDS_MAX);
        let events = self.events.as_ref().map(|events| match events {
            Events::First(sender) => Events::Further(sender.downgrade()),
            Events::Further(sender) => Events::Further(sender.clone()),
        });
        let (lost, reload) = (self.lost.clone(), self.reload.clone());
        (Self { commands, events, lost, reload, metered: None, thread: None }, sender)
    }

    pub(super) fn set_thread(&mut self, thread: JoinHandle<()>) {
        self.thread = Some(thread);
    }

    /// The next command. Call it until it returns `None` whenever the waker woke the loop.
    pub fn try_recv(&self) -> Option<AdminCommand<C>> {
        self.commands.try_recv().ok()
    }

    /// Publishes an event on the stream. If the channel is full, the event is dropped and counted.
    /// The control thread itself publishes [`AdminEvent::Started`], [`AdminEvent::Reloaded`],
    /// [`AdminEvent::ReloadRefused`], [`AdminEvent::LinkChanged`] and [`AdminEvent::EventsLost`].
    pub fn publish(&self, event: AdminEvent) {
        let event = (Timestamp::now(), event);
        let sent = match &self.events {
            None => return,
            Some(Events::First(events)) => events.try_send(event),
            // The first data plane publishes what concerns all.
            Some(Events::Further(_)) if matches!(event.1, AdminEvent::SchedulerChanged { .. }) => {
                return;
            }
            Some(Events::Further(events)) => match events.upgrade() {
                Some(events) => events.try_send(event),
                None => return,
            },
        };
        if sent.is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts the bytes of these carriers from now on; [`AdminCommand::Usage`] reports them.
    pub fn meter(&self, carriers: Vec<Metered>) {
        let Some(metered) = &self.metered else { return };
        metered.send_if_modified(|known| {
            let changed = *known != carriers;
            *known = carriers;
            changed
        });
    }

    /// Requests a reload, for SIGHUP. A valid configuration arrives as [`AdminCommand::Reload`];
    /// the outcome is logged. Requests during a reload cause one more reload after it.
    pub fn request_reload(&self) {
        self.reload.notify_one();
    }
}

impl<C: Tables> Drop for AdminHandle<C> {
    fn drop(&mut self) {
        (self.events, self.metered) = (None, None);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
