//! A reload from its beginning to its end: read, check, compare, hand over, and only then take.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::desk::{ASKER_WAIT, Desk, at_last, in_time, too_late};
use super::{AdminError, Answer, Command, DaemonConfig, ErrorCode, Event, Loaded, Timestamp};
use polyrail_config::log::{LogHandle, PreparedLog};
use polyrail_config::{Overrides, TlsConfig};
use polyrail_control::check::usable_tls;
use polyrail_control::reload::{Change, ChangeLine, Difference};

/// What a reload did: the answer of `POST /v1/reload`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// What it changed; empty when the configuration was the same.
    pub changes: Vec<ChangeLine>,
    /// What is not good about the new configuration, in words for people.
    pub warnings: Vec<String>,
}

/// What was in the files of `[tls]`: a digest for each that could be read.
pub(super) type Seals = BTreeMap<&'static str, [u8; 32]>;

/// A configuration that was read and found good.
struct Prepared<C> {
    config: C,
    seals: Seals,
    difference: Difference,
    warnings: Vec<String>,
    loaded: Option<Loaded>,
    log: Option<PreparedLog>,
}

/// How long the files of a new configuration may take to be read. With [`ASKER_WAIT`] it is less
/// than what the command `polyrail` waits.
pub(super) const READ_WAIT: Duration = Duration::from_secs(7);

/// Threads that read files at once. One that hangs in a file system cannot be ended; when all do,
/// a reload is refused as `busy` until the file system answers.
pub(super) const READERS_MAX: usize = 4;

/// What is in the files of `[tls]` now. `before` hears of each before it is read.
pub(super) fn seals(tls: &TlsConfig, before: impl Fn(&'static str, &Path)) -> Seals {
    let TlsConfig { certificate, key, authority, revocations } = tls;
    let files = [
        ("tls.certificate", Some(certificate)),
        ("tls.key", Some(key)),
        ("tls.authority", Some(authority)),
        ("tls.revocations", revocations.as_ref()),
    ];
    let seal = |(name, file): (&'static str, Option<&PathBuf>)| {
        let file = file?;
        before(name, file);
        Some((name, polyrail_identity::digest(file).ok()?))
    };
    files.into_iter().filter_map(seal).collect()
}

/// What was handed over to the data plane, and where its answer arrives; none is awaited when
/// nothing changes for it.
type Begun<C> = (Prepared<C>, Option<Answer<Result<Vec<String>, AdminError>>>);

impl<C: DaemonConfig> Desk<C> {
    /// Reloads; one at a time. `asker` is named in the log. An asker that goes away does not cut
    /// it short.
    ///
    /// # Errors
    /// The new configuration was refused, by a check or by the data plane, and nothing changed; or
    /// the data plane is late, and what it answers in the end is heeded then.
    pub(super) async fn reload(
        self: &Arc<Self>,
        asker: &'static str,
    ) -> Result<Reloaded, AdminError> {
        let (asked, outcome) = oneshot::channel();
        tokio::spawn(self.clone().carry_out(asker, asked));
        outcome.await.unwrap_or_else(|_| Err(lost()))
    }

    async fn carry_out(
        self: Arc<Self>,
        asker: &'static str,
        asked: oneshot::Sender<Result<Reloaded, AdminError>>,
    ) {
        let mut asked = Some(asked);
        // An asker who went away misses nothing.
        let mut finish = |outcome: Result<Reloaded, AdminError>| {
            self.tell(asker, &outcome);
            asked.take().map(|asked| asked.send(outcome))
        };
        let Ok(_alone) = timeout(ASKER_WAIT, self.reloading.lock()).await else {
            let message = "the reload before this one has not ended yet: try again";
            finish(Err(AdminError::new(ErrorCode::Busy, message)));
            return;
        };
        let (prepared, answer) = match self.begin_reload().await {
            Ok(begun) => begun,
            Err(error) => {
                finish(Err(error));
                return;
            }
        };
        let mut warned = Ok(Vec::new());
        if let Some(mut answer) = answer {
            let answered = match in_time(&mut answer).await {
                Some(answered) => answered,
                // Until it is known what the data plane did, nothing can be compared with it.
                None => {
                    finish(Err(too_late()));
                    at_last(&mut answer).await
                }
            };
            warned = answered.and_then(|warned| warned);
        }
        finish(warned.map(|warned| self.take(prepared, warned)));
    }

    /// Logs an outcome and puts it on the stream.
    fn tell(&self, asker: &str, outcome: &Result<Reloaded, AdminError>) {
        match outcome {
            Ok(Reloaded { changes, warnings }) => {
                for warning in warnings {
                    tracing::warn!("{warning}");
                }
                for change in changes {
                    tracing::info!("{change}");
                }
                tracing::info!(asker, changes = changes.len(), "reloaded the configuration");
                let event = Event::Reloaded { changes: changes.clone() };
                self.stream.push(Timestamp::now(), event);
            }
            Err(error) => {
                let (code, reason) = (error.code(), error.to_string());
                if code == ErrorCode::Timeout {
                    tracing::error!(asker, reason, "a reload is late: it may be done yet");
                } else {
                    self.running().refused += 1;
                    let text = "a reload was refused: nothing was changed";
                    tracing::error!(asker, %code, reason, "{text}");
                }
                let event = Event::ReloadRefused { error: (*error.0).clone() };
                self.stream.push(Timestamp::now(), event);
            }
        }
    }

    /// Reads, checks, compares and hands over.
    async fn begin_reload(&self) -> Result<Begun<C>, AdminError> {
        let mut prepared = self.read().await?;
        let changes = prepared.difference.changes.clone();
        if changes.is_empty() {
            return Ok((prepared, None));
        }
        let config = Box::new(prepared.config.clone());
        let loaded = prepared.loaded.take();
        let answer = self.begin(|reply| Command::Reload { config, changes, loaded, reply })?;
        Ok((prepared, Some(answer)))
    }

    /// Reads and checks on a thread of its own: files may stand on something slow, or on something
    /// that never answers.
    async fn read(&self) -> Result<Prepared<C>, AdminError> {
        let Ok(seat) = self.readers.clone().try_acquire_owned() else {
            let message = format!(
                "{READERS_MAX} reloads before this one still wait for a file to be read: look \
                 whether its file system is there, and try again"
            );
            return Err(AdminError::new(ErrorCode::Busy, message));
        };
        let place = Place::default();
        let reading = {
            let running = self.running();
            Reading {
                file: self.file.clone(),
                overrides: self.overrides,
                running: running.config.clone(),
                sealed: running.seals.clone(),
                load: self.load,
                log: self.log.clone(),
                place: place.clone(),
            }
        };
        let prepared = tokio::task::spawn_blocking(move || {
            let _seat = seat;
            reading.prepare()
        });
        match timeout(READ_WAIT, prepared).await {
            Ok(prepared) => prepared.map_err(|_| lost())?,
            Err(_) => Err(place.hangs(&self.file)),
        }
    }

    /// The data plane has taken it: so does the rest. `warned` is what the data plane warns of.
    fn take(&self, prepared: Prepared<C>, warned: Vec<String>) -> Reloaded {
        let Prepared { config, seals, difference, mut warnings, loaded: _, log } = prepared;
        warnings.extend(warned);
        if let Some((log, prepared)) = self.log.as_ref().zip(log) {
            log.take(prepared);
        }
        self.interfaces.send_replace(config.interfaces());
        let mut running = self.running();
        running.config = config;
        running.seals = seals;
        running.loaded_at = Timestamp::now();
        running.reloads += 1;
        Reloaded { changes: difference.lines, warnings }
    }
}

fn lost() -> AdminError {
    AdminError::new(ErrorCode::Internal, "the reload failed inside the daemon")
}

/// Reads and checks a new configuration. Nothing waits for it longer than [`READ_WAIT`], and what
/// it finds later is dropped.
struct Reading<C> {
    file: PathBuf,
    overrides: Overrides,
    running: C,
    sealed: Seals,
    load: fn(&C) -> Result<Loaded, String>,
    log: Option<LogHandle>,
    place: Place,
}

impl<C: DaemonConfig> Reading<C> {
    fn prepare(self) -> Result<Prepared<C>, AdminError> {
        let Self { file, overrides, running, sealed, load, log, place } = self;
        let config = C::read(&file, &overrides).map_err(|error| AdminError::from(&error))?;
        let difference = running.diff(&config)?;
        let seals = seals(config.tls(), |key, file| place.is(key, file.display().to_string()));
        let mut prepared =
            Prepared { config, seals, difference, warnings: Vec::new(), loaded: None, log: None };
        prepared.compare_seals(&sealed);
        place.is("tls", "the files of [tls]".to_owned());
        prepared.check_tls(&file)?;
        if prepared.difference.changes.contains(&Change::Certificates) {
            let loaded = load(&prepared.config);
            prepared.loaded = Some(loaded.map_err(|reason| invalid(&file, "tls", reason))?);
        }
        if let Some(log) = log {
            place.is("log.file", "the log's file".to_owned());
            prepared.open_log(&log, &running, &file)?;
        }
        Ok(prepared)
    }
}

/// Which file is being read: its key, and the file in words. None: the configuration's.
#[derive(Clone, Default)]
struct Place(Arc<Mutex<Option<(&'static str, String)>>>);

impl Place {
    fn is(&self, key: &'static str, file: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((key, file));
    }

    /// The refusal when it was not read in time.
    fn hangs(&self, config: &Path) -> AdminError {
        let place = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (key, what) = place.unwrap_or(("", config.display().to_string()));
        let after = READ_WAIT.as_secs();
        let reason = format!(
            "{what}: not read within {after} s: look whether the file system is \
                              there; nothing was changed"
        );
        if key.is_empty() {
            let mut refusal = AdminError::new(ErrorCode::InvalidConfig, reason);
            refusal.0.file = Some(config.to_owned());
            return refusal;
        }
        invalid(config, key, format!("{key}: {reason}"))
    }
}

impl<C: DaemonConfig> Prepared<C> {
    /// A certificate file may hold something new under its old name.
    fn compare_seals(&mut self, sealed: &Seals) {
        let lines = &mut self.difference.lines;
        let mut fresh = false;
        for (key, seal) in &self.seals {
            let known = lines.iter().any(|line| line.key == *key);
            if !known && sealed.get(key) != Some(seal) {
                lines.push(ChangeLine { key: (*key).to_owned(), from: None, to: None });
                fresh = true;
            }
        }
        let changes = &mut self.difference.changes;
        if fresh && !changes.contains(&Change::Certificates) {
            changes.push(Change::Certificates);
        }
    }

    fn check_tls(&mut self, file: &Path) -> Result<(), AdminError> {
        let (problems, warnings) = usable_tls(self.config.tls(), C::KIND);
        if let Some(first) = problems.first() {
            let key = first.split(':').next().unwrap_or_default();
            return Err(invalid(file, key, problems.join("\n")));
        }
        self.warnings.extend(warnings);
        Ok(())
    }

    /// Opens the log file anew: it may have been moved away.
    fn open_log(&mut self, log: &LogHandle, running: &C, file: &Path) -> Result<(), AdminError> {
        match log.prepare(self.config.log()) {
            Ok(prepared) => self.log = Some(prepared),
            Err(error) if self.config.log() != running.log() => {
                return Err(invalid(file, "log.file", error.to_string()));
            }
            Err(error) => self.warnings.push(format!("log.file: it goes on as it was: {error}")),
        }
        Ok(())
    }
}

fn invalid(file: &Path, key: &str, reason: String) -> AdminError {
    let mut refusal = AdminError::new(ErrorCode::InvalidConfig, reason).about_key(key);
    refusal.0.file = Some(PathBuf::from(file));
    refusal
}
