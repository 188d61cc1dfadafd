//! The data plane's end of the control thread. Nothing here ever waits, but the end of it all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use super::{Command, DaemonConfig, Event, Timestamp};

/// What the data plane holds of the control thread. When it is dropped the thread ends, and the
/// socket's file goes.
#[derive(Debug)]
pub struct AdminHandle<C: DaemonConfig> {
    commands: Receiver<Command<C>>,
    wires: Wires,
    thread: Option<JoinHandle<()>>,
    ended: Receiver<()>,
}

/// What goes from the data plane to the control thread.
#[derive(Clone, Debug)]
pub(super) struct Wires {
    pub(super) events: mpsc::Sender<(Timestamp, Event)>,
    /// Events that the channel had no room for.
    pub(super) lost: Arc<AtomicU64>,
    /// Somebody wants a reload.
    pub(super) reload: Arc<Notify>,
    /// The control thread shall end.
    pub(super) stop: Arc<Notify>,
}

/// The control thread's ends of the same.
#[derive(Debug)]
pub(super) struct Ends<C: DaemonConfig> {
    pub(super) commands: SyncSender<Command<C>>,
    pub(super) events: mpsc::Receiver<(Timestamp, Event)>,
    pub(super) wires: Wires,
    /// Dropped when the thread has ended.
    pub(super) ended: SyncSender<()>,
}

/// Commands that wait for the data plane; beyond, a request is refused as `busy`.
pub const COMMANDS_MAX: usize = 64;

/// Events that wait for the control thread; beyond, they are lost and counted.
pub const EVENTS_WAITING_MAX: usize = 1024;

impl<C: DaemonConfig> AdminHandle<C> {
    pub(super) fn pair() -> (Self, Ends<C>) {
        let (command_sender, commands) = sync_channel(COMMANDS_MAX);
        let (event_sender, events) = mpsc::channel(EVENTS_WAITING_MAX);
        let (ended_sender, ended) = sync_channel(1);
        let wires = Wires {
            events: event_sender,
            lost: Arc::default(),
            reload: Arc::default(),
            stop: Arc::default(),
        };
        let ends =
            Ends { commands: command_sender, events, wires: wires.clone(), ended: ended_sender };
        (Self { commands, wires, thread: None, ended }, ends)
    }

    pub(super) fn hold(&mut self, thread: JoinHandle<()>) {
        self.thread = Some(thread);
    }

    /// The next command; call it until there is none whenever the waker woke the loop.
    pub fn try_recv(&self) -> Option<Command<C>> {
        self.commands.try_recv().ok()
    }

    /// Puts an event on the stream. All but [`Event::Started`], [`Event::Reloaded`],
    /// [`Event::ReloadRefused`], [`Event::LinkChanged`] and [`Event::EventsLost`] are the data
    /// plane's to tell. When more come at once than the control thread can take, the
    /// stream says how many are missing.
    pub fn publish(&self, event: Event) {
        if self.wires.events.try_send((Timestamp::now(), event)).is_err() {
            self.wires.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Begins a reload, as SIGHUP wants it: the file is read, and when it is good a
    /// [`Command::Reload`] comes. The outcome is logged. A request while a reload is under way
    /// begins another one after it, however many there are.
    pub fn request_reload(&self) {
        self.wires.reload.notify_one();
    }
}

impl<C: DaemonConfig> Drop for AdminHandle<C> {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.wires.stop.notify_one();
        // A thread that hangs in a file system must not keep the daemon from ending.
        if self.ended.recv_timeout(END_WAIT) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = thread.join();
        }
    }
}

/// How long the control thread may take to end.
const END_WAIT: Duration = Duration::from_secs(1);
