//! A database that may fail, and the views of its logs: unwritten entries wait in memory.
//!
//! After an error the store is closed and opened again every ten seconds; then the waiting entries
//! are written, and the views are derived again. Messages of a peer do not wait, because the peer
//! sends them again.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polyrail_model::{Delivery, NodeRole, RouteId};

use super::{LinkDbSettings, StoreState};
use crate::entry::{Entry, EntryKey, LogNumber, WriterNumber};
use crate::shared::{Answer, News, SharedLogs, SharedState};
use crate::store::{Appended, Limits, Store, StoreError};
use crate::sync::{Heard, Quotas, Sync};
use crate::views::Views;
use crate::wire::SyncMessage;

pub(super) struct BufferedStore {
    path: Option<PathBuf>,
    settings: LinkDbSettings,
    role: NodeRole,
    /// The name in the node's certificate.
    name: String,
    store: Option<Store>,
    views: Views,
    /// Writers that the views know by name.
    introduced: BTreeSet<WriterNumber>,
    /// Entries to be written, oldest first; at most [`WAITING_MAX`].
    waiting: VecDeque<Entry>,
    lost: u64,
    /// Entries to be deleted; at most [`USELESS_MAX`], further ones stay until the next start.
    useless: Vec<EntryKey>,
    quotas: Quotas,
    /// Tracks of other writers may have changed.
    tracks_changed: bool,
    /// Milliseconds since 1970.
    wall_ms: u64,
    now: Instant,
    error: Option<String>,
    retry_at: Instant,
    /// The damaged file that was set aside.
    damaged: Option<String>,
    sweep_at: Instant,
    /// When changed tracks of other writers are built.
    refresh_at: Instant,
    /// When stored entries are counted again on changed tracks, and when that began last.
    derive_at: Instant,
    derive_began: Instant,
    /// The clock was implausible at the last sweep, and a warning was logged.
    clock_doubted: bool,
}

impl BufferedStore {
    /// Opens the database of a node, or notes the error.
    pub(super) fn open(
        now: Instant,
        path: Option<PathBuf>,
        settings: LinkDbSettings,
        role: NodeRole,
        name: &str,
    ) -> Self {
        let mut buffered = Self {
            path,
            settings,
            role,
            name: name.to_owned(),
            store: None,
            views: Views::new(role),
            introduced: BTreeSet::new(),
            waiting: VecDeque::new(),
            lost: 0,
            useless: Vec::new(),
            quotas: Quotas::default(),
            tracks_changed: false,
            wall_ms: 0,
            now,
            error: None,
            retry_at: now,
            damaged: None,
            sweep_at: now + SWEEP_FIRST,
            refresh_at: now,
            derive_at: now + DERIVE_EVERY,
            derive_began: now,
            clock_doubted: false,
        };
        buffered.try_open();
        buffered
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Notes on which track a train is.
    pub(super) fn ride(&mut self, train: &str, route: RouteId) {
        self.views.ride(train, route);
    }

    pub(super) fn views(&self) -> &Views {
        &self.views
    }

    /// The number of a writer; nobody if it has no log.
    pub(super) fn writer(&self, name: &str) -> WriterNumber {
        let number = self.store.as_ref().and_then(|store| store.writer_named(name));
        number.unwrap_or(WriterNumber::NOBODY)
    }

    pub(super) fn reload(&mut self, settings: LinkDbSettings) {
        if self.settings.retention != settings.retention {
            self.sweep_at = self.now;
        }
        self.settings = settings;
        if let Some(store) = &mut self.store {
            store.set_limits(limits(settings));
        }
    }

    /// Sets the time; call it before anything else.
    pub(super) fn set_time(&mut self, now: Instant, wall_ms: u64) {
        (self.now, self.wall_ms) = (now, wall_ms);
    }

    fn try_open(&mut self) {
        match self.opened() {
            Ok(()) => {
                if self.error.take().is_some() {
                    tracing::info!("LinkDB is open again");
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    fn opened(&mut self) -> Result<(), StoreError> {
        let limits = limits(self.settings);
        let (mut store, damaged) = match &self.path {
            Some(path) => Store::open_or_replace(path, limits)?,
            None => (Store::in_memory(limits)?, None),
        };
        if let Some(damaged) = damaged {
            tracing::error!(%damaged, "renamed the damaged LinkDB, created an empty one");
            self.damaged = Some(damaged);
        }
        store.set_own_name(&self.name)?;
        if !self.waiting.is_empty() {
            store.append_own(self.waiting.make_contiguous(), self.wall_ms)?;
            self.waiting.clear();
        }
        self.store = Some(store);
        self.derive()
    }

    /// Derives the views from the logs.
    fn derive(&mut self) -> Result<(), StoreError> {
        let Some(store) = &self.store else { return Ok(()) };
        (self.views, self.useless) = Views::of_store(store, self.role)?;
        self.introduced = store.logs().map(|(log, _)| store.writer(log)).collect();
        self.tracks_changed = true;
        Ok(())
    }

    fn fail(&mut self, error: &StoreError) {
        let path = self.path.as_deref().unwrap_or(Path::new("memory"));
        let text = format!("{}: {error}", path.display());
        if self.error.as_ref() != Some(&text) {
            tracing::error!(error = text, "LinkDB failed; forecasts continue from memory");
        }
        self.error = Some(text);
        // All views are derived again with the next store.
        self.store = None;
        self.retry_at = self.now + RETRY;
    }

    /// Appends an entry of this node, or keeps it until the database can be written. Returns the
    /// own log if it was written.
    pub(super) fn record(&mut self, entry: Entry) -> Option<LogNumber> {
        let wall_ms = self.wall_ms;
        if self.store.is_some() {
            let entries = std::slice::from_ref(&entry);
            if let Some(appended) = self.with(|store| store.append_own(entries, wall_ms)) {
                if appended.refused > 0 {
                    tracing::warn!("rejected an invalid LinkDB entry");
                }
                self.apply(&appended);
                return self.store.as_ref().map(Store::own_log);
            }
        }
        // The numbers of waiting entries are their own until the file is open again.
        let sequence = self.lost + self.waiting.len() as u64;
        let key = EntryKey { log: WAITING, sequence };
        self.tracks_changed |= self.views.is_stale();
        let _ = self.views.apply(WriterNumber::OWN, key, &entry);
        if self.waiting.len() >= WAITING_MAX {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back(entry);
        None
    }

    /// Appends what this node has observed of a peer; false if the peer's quota is used up.
    pub(super) fn record_of(&mut self, peer: &str, entry: &Entry) -> bool {
        if peer == self.name || !self.quotas.take(self.now, peer, 1) {
            return false;
        }
        let (entries, wall_ms) = (std::slice::from_ref(entry), self.wall_ms);
        if let Some(appended) = self.with(|store| store.append_of(peer, entries, wall_ms)) {
            self.apply(&appended);
        }
        true
    }

    /// Takes what a peer or the shared database has changed over into the views.
    fn take_over(&mut self, heard: &Heard) {
        self.apply(&heard.appended);
        if heard.moved
            && let Err(error) = self.derive()
        {
            self.fail(&error);
        }
    }

    /// Takes written entries over into the views.
    fn apply(&mut self, appended: &Appended) {
        let Self { store: Some(store), views, introduced, useless, tracks_changed, .. } = self
        else {
            return;
        };
        for (log, floor) in &appended.forgotten {
            views.forget_below(*log, *floor);
        }
        *tracks_changed |= !appended.forgotten.is_empty();
        for (key, entry) in &appended.fresh {
            let writer = store.writer(key.log);
            if introduced.insert(writer)
                && let Some(log) = store.log(key.log)
            {
                views.introduce(writer, &log.id.writer);
            }
            // Tracks of others wait for their turn, because a long one takes milliseconds.
            let is_own_track = writer == WriterNumber::OWN && matches!(entry, Entry::Track(_));
            *tracks_changed |= is_own_track && views.is_stale();
            useless.extend(views.take(writer, *key, entry));
            if is_own_track {
                views.refresh();
            }
        }
        useless.truncate(USELESS_MAX);
    }

    /// A message of a peer's database.
    pub(super) fn hear(&mut self, sync: &mut Sync, message: SyncMessage) -> Heard {
        let (now, wall_ms) = (self.now, self.wall_ms);
        let mut quotas = std::mem::take(&mut self.quotas);
        let heard = self.with(|store| sync.on_message(now, wall_ms, store, &mut quotas, message));
        self.quotas = quotas;
        // If the database fails, the peer sends the message again.
        let heard = heard.unwrap_or_default();
        self.take_over(&heard);
        heard
    }

    /// News of the shared database: the changed logs, and its next work.
    pub(super) fn share(
        &mut self,
        shared: &mut SharedLogs,
        news: News,
    ) -> Option<(BTreeSet<LogNumber>, Answer)> {
        let (now, wall_ms, room) = (self.now, self.wall_ms, self.settings.events_max);
        let heard = self.with(|store| shared.take(now, wall_ms, store, news))?;
        self.take_over(&heard);
        let answer = self.with(|store| shared.answer(now, store, room))?;
        Some((heard.changed, answer))
    }

    pub(super) fn shared_state(&self, shared: &SharedLogs) -> SharedState {
        shared.state(self.now, self.store.as_ref())
    }

    /// The next message for a peer's database.
    pub(super) fn poll(&mut self, sync: &mut Sync) -> Option<(Delivery, SyncMessage)> {
        let now = self.now;
        self.with(|store| sync.poll(now, store))?
    }

    /// Retries what failed, deletes useless entries, and evicts old ones.
    pub(super) fn on_timeout(&mut self, now: Instant, wall_ms: u64) {
        self.set_time(now, wall_ms);
        if self.store.is_none() && now >= self.retry_at {
            self.try_open();
        }
        if !self.useless.is_empty() {
            let useless = std::mem::take(&mut self.useless);
            self.with(|store| store.delete(&useless));
        }
        if self.views.is_stale() && now >= self.refresh_at {
            self.refresh_at = now + REFRESH_EVERY;
            self.views.refresh();
            self.tracks_changed = true;
        }
        self.derive_some();
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP_EVERY;
            self.sweep();
        }
    }

    /// Counts stored entries again on tracks that have changed, a page at a time, because forecasts
    /// must not wait for all of them.
    fn derive_some(&mut self) {
        let Self { store: Some(store), views, .. } = self else { return };
        if views.next_derived().is_none() && views.needs_derivation() && self.now >= self.derive_at
        {
            (self.derive_at, self.derive_began) = (self.now + DERIVE_EVERY, self.now);
            views.begin_derivation();
        }
        let Some(EntryKey { log, sequence }) = views.next_derived() else { return };
        let writer = store.writer(log);
        match store.since(log, sequence, DERIVED_BYTES) {
            Ok(page) => {
                for (sequence, entry) in &page.entries {
                    views.derive(writer, EntryKey { log, sequence: *sequence }, entry);
                }
                let is_end = store.log(log).is_none_or(|known| page.end >= known.next);
                let later = || store.logs().map(|(number, _)| number).find(|one| *one > log);
                let next = if is_end { later().map(|log| (log, 0)) } else { Some((log, page.end)) };
                match next {
                    Some((log, sequence)) => views.derived_below(EntryKey { log, sequence }),
                    None => {
                        views.end_derivation();
                        let took = self.now.saturating_duration_since(self.derive_began);
                        self.derive_at = self.derive_at.max(self.now + DERIVE_REST * took);
                    }
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Evicts entries by age, if the clock is plausible.
    fn sweep(&mut self) {
        let (wall_ms, retention) = (self.wall_ms, self.settings.retention);
        let Some(attested) = self.with(|store| store.sweep(wall_ms, retention)) else { return };
        let warned = std::mem::replace(&mut self.clock_doubted, attested.is_some());
        if let Some(attested_ms) = attested
            && !warned
        {
            tracing::warn!(
                wall_ms,
                attested_ms,
                "the clock is far ahead of LinkDB's entries: none is evicted by age"
            );
        }
    }

    /// Reports the backlog before the end.
    pub(super) fn close(&mut self) {
        if self.store.is_none() && !self.waiting.is_empty() {
            self.try_open();
        }
        if !self.waiting.is_empty() {
            tracing::error!(entries = self.waiting.len(), "entries could not be written");
        }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Store) -> Result<T, StoreError>) -> Option<T> {
        match act(self.store.as_mut()?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.fail(&error);
                None
            }
        }
    }

    /// When [`BufferedStore::poll`] may have a message: not before a closed database is opened
    /// again.
    pub(super) fn poll_at(&self, sync: &Sync) -> Option<Instant> {
        let at = sync.next_timeout()?;
        Some(if self.store.is_some() { at } else { at.max(self.retry_at) })
    }

    /// Whether tracks of other writers may have changed since the last call.
    pub(super) fn take_tracks_changed(&mut self) -> bool {
        std::mem::take(&mut self.tracks_changed)
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let retry = self.store.is_none().then_some(self.retry_at);
        let refresh = self.views.is_stale().then_some(self.refresh_at);
        let derive = self.store.is_some().then(|| match self.views.next_derived() {
            Some(_) => Some(self.now),
            None => self.views.needs_derivation().then_some(self.derive_at),
        });
        let all = [retry, refresh, derive.flatten(), Some(self.sweep_at)];
        all.into_iter().flatten().min()
    }

    pub(super) fn state(&self) -> StoreState {
        StoreState {
            path: self.path.clone(),
            open: self.store.is_some(),
            error: self.error.clone(),
            damaged: self.damaged.clone(),
            waiting: self.waiting.len(),
            lost: self.lost,
            stats: self.store.as_ref().and_then(|store| store.stats().ok()),
            views: self.views.sizes(),
        }
    }
}

fn limits(settings: LinkDbSettings) -> Limits {
    Limits { events_max: settings.events_max, ..Limits::default() }
}

/// Entries in memory while the database cannot be written.
const WAITING_MAX: usize = 4_096;
/// The log of waiting entries in the views.
const WAITING: LogNumber = LogNumber(u32::MAX);
/// Entries that wait to be deleted.
const USELESS_MAX: usize = 65_536;
/// Interval of retries after a failure.
const RETRY: Duration = Duration::from_secs(10);
/// Interval at which tracks of other writers change.
const REFRESH_EVERY: Duration = Duration::from_secs(5);
/// Interval at which stored entries are counted again on changed tracks.
const DERIVE_EVERY: Duration = Duration::from_secs(60);
/// A pause after that, in times of its duration: writers whose tracks change all the time cost a
/// tenth of a processor.
const DERIVE_REST: u32 = 9;
/// Bytes of entries that are counted in one turn of the thread: some milliseconds.
const DERIVED_BYTES: usize = 8_192;
/// Interval of evictions by age. The first one comes when the clock should be set.
const SWEEP_EVERY: Duration = Duration::from_secs(3_600);
const SWEEP_FIRST: Duration = Duration::from_secs(600);
