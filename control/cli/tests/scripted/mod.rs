//! A daemon without a data plane: a control thread whose requests a script answers.

#![allow(clippy::unwrap_used)] // also in the helpers
#![allow(dead_code)] // each test uses its part

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use mio::{Events, Poll, Token, Waker};
use polyrail_admin::{
    AdminCommand, AdminEvent, AdminHandle, AdminOptions, LinkDbProbe, StartOptions,
};
use polyrail_config::{Config, Overrides, Tables};
use polyrail_identity::{Authority, IssueRequest};
use polyrail_model::Identity;

/// A running daemon, in a folder of its own.
pub struct Daemon {
    folder: tempfile::TempDir,
    waker: Arc<Waker>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts a node `n` with this configuration in `daemon.toml`, and publishes the events.
    pub fn start<C: Tables>(
        text: &str,
        linkdb: Option<LinkDbProbe>,
        events: Vec<AdminEvent>,
        mut answer: impl FnMut(&AdminHandle<C>, AdminCommand<C>) + Send + 'static,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let authority = Authority::create(dir, "Test", false).unwrap();
        let (name, out) = (Identity::new("n").unwrap(), dir.to_owned());
        let request = IssueRequest { name, role: C::ROLE, days: 397, out, force: false };
        authority.issue(&request).unwrap();
        let file = dir.join("daemon.toml");
        std::fs::write(&file, text).unwrap();
        let mut poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let options = AdminOptions {
            config: Config::<C>::load(&file, &Overrides::default()).unwrap(),
            start: StartOptions { file, ..StartOptions::default() },
            waker: waker.clone(),
            watch_links: false,
            usage: None,
            linkdb,
        };
        let handle = polyrail_admin::start(options).unwrap();
        events.into_iter().for_each(|event| handle.publish(event));
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let thread = thread::spawn(move || {
            let mut events = Events::with_capacity(4);
            while !ends.load(Ordering::Relaxed) {
                poll.poll(&mut events, None).unwrap();
                while let Some(command) = handle.try_recv() {
                    answer(&handle, command);
                }
            }
        });
        Self { folder, waker, over, thread: Some(thread) }
    }

    /// Its folder, also for relative paths of the configuration.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
