//! A reload from its beginning to its end: read, check, compare, hand over, and only then take.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::desk::Desk;
use super::{AdminError, Command, DaemonConfig, ErrorCode, Event, Timestamp};
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

impl<C: DaemonConfig> Desk<C> {
    /// Reloads; one at a time. `asker` is named in the log.
    ///
    /// # Errors
    /// The new configuration was refused, by a check or by the data plane, and nothing changed.
    pub(super) async fn reload(&self, asker: &str) -> Result<Reloaded, AdminError> {
        let _alone = self.reloading.lock().await;
        let outcome = self.try_reload().await;
        match &outcome {
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
                self.running().refused += 1;
                let (code, reason) = (error.code(), error.to_string());
                tracing::error!(asker, %code, reason, "a reload was refused: nothing was changed");
                let event = Event::ReloadRefused { error: (*error.0).clone() };
                self.stream.push(Timestamp::now(), event);
            }
        }
        outcome
    }

    async fn try_reload(&self) -> Result<Reloaded, AdminError> {
        let (running, seals) = {
            let running = self.running();
            (running.config.clone(), running.seals.clone())
        };
        let (file, overrides, log) = (self.file.clone(), self.overrides, self.log.clone());
        // Files may stand on something slow.
        let prepared = tokio::task::spawn_blocking(move || {
            prepare(&file, &overrides, &running, &seals, log.as_ref())
        });
        let lost = |_| AdminError::new(ErrorCode::Internal, "the reload failed inside the daemon");
        let prepared = prepared.await.map_err(lost)??;
        let Prepared { config, seals, difference, mut warnings, log } = prepared;
        let Difference { changes, lines } = difference;
        if !changes.is_empty() {
            let handed_over = Box::new(config.clone());
            let command = |reply| Command::Reload { config: handed_over, changes, reply };
            warnings.extend(self.ask(command).await??);
        }
        if let Some((log, prepared)) = self.log.as_ref().zip(log) {
            log.take(prepared);
        }
        self.interfaces.send_replace(config.interfaces());
        let mut running = self.running();
        running.config = config;
        running.seals = seals;
        running.loaded_at = Timestamp::now();
        running.reloads += 1;
        Ok(Reloaded { changes: lines, warnings })
    }
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
