//! A reload from its beginning to its end: read, check, compare, hand over, and only then take.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::desk::{ASKER_WAIT, Desk, at_last, in_time, too_late};
use super::{AdminError, Answer, Command, DaemonConfig, ErrorCode, Event, Timestamp};
use crate::check::usable_tls;
use crate::config::{Overrides, TlsConfig};
use crate::log::{LogHandle, PreparedLog};
use crate::pki;
use crate::reload::{Change, ChangeLine, Difference};

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
    log: Option<PreparedLog>,
}

/// What is in the files of `[tls]` now.
pub(super) fn seals(tls: &TlsConfig) -> Seals {
    let TlsConfig { certificate, key, authority, revocations } = tls;
    let files = [
        ("tls.certificate", Some(certificate)),
        ("tls.key", Some(key)),
        ("tls.authority", Some(authority)),
        ("tls.revocations", revocations.as_ref()),
    ];
    files.into_iter().filter_map(|(name, file)| Some((name, pki::digest(file?).ok()?))).collect()
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
        let (running, seals) = {
            let running = self.running();
            (running.config.clone(), running.seals.clone())
        };
        let (file, overrides, log) = (self.file.clone(), self.overrides, self.log.clone());
        // Files may stand on something slow.
        let prepared = tokio::task::spawn_blocking(move || {
            prepare(&file, &overrides, &running, &seals, log.as_ref())
        });
        let prepared = prepared.await.map_err(|_| lost())??;
        let changes = prepared.difference.changes.clone();
        if changes.is_empty() {
            return Ok((prepared, None));
        }
        let config = Box::new(prepared.config.clone());
        let answer = self.begin(|reply| Command::Reload { config, changes, reply })?;
        Ok((prepared, Some(answer)))
    }

    /// The data plane has taken it: so does the rest. `warned` is what the data plane warns of.
    fn take(&self, prepared: Prepared<C>, warned: Vec<String>) -> Reloaded {
        let Prepared { config, seals, difference, mut warnings, log } = prepared;
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

fn prepare<C: DaemonConfig>(
    file: &Path,
    overrides: &Overrides,
    running: &C,
    sealed: &Seals,
    log: Option<&LogHandle>,
) -> Result<Prepared<C>, AdminError> {
    let config = C::read(file, overrides).map_err(|error| AdminError::from(&error))?;
    let difference = running.diff(&config)?;
    let mut prepared = Prepared {
        seals: seals(config.tls()),
        config,
        difference,
        warnings: Vec::new(),
        log: None,
    };
    prepared.compare_seals(sealed);
    prepared.check_tls(file)?;
    if let Some(log) = log {
        prepared.open_log(log, running, file)?;
    }
    Ok(prepared)
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
