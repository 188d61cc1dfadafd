//! A reload: read, check, compare, hand over to the data plane, and only then apply the rest.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use polyrail_config::check::load_identity;
use polyrail_config::{Config, Tables};
use polyrail_identity::TlsIdentity;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedMutexGuard;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::control::{ASKER_WAIT, Control, Digests, at_last, digests, too_late};
use super::{AdminCommand, AdminError, AdminEvent, ErrorCode, StartOptions, Timestamp};
use crate::reload::{ChangeLine, changes};

/// The answer of `POST /v1/reload`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// The changed keys; empty when the configuration was the same.
    pub changes: Vec<ChangeLine>,
    /// Defects of the new configuration, in words for people.
    pub warnings: Vec<String>,
}

/// A valid new configuration.
struct Prepared<C> {
    config: Config<C>,
    digests: Digests,
    /// The new certificates and key, if something about them changed.
    identity: Option<TlsIdentity>,
    reloaded: Reloaded,
}

impl<C: Tables> Control<C> {
    /// Reloads; one at a time. The log names `asker`. A reload continues when its asker goes away.
    ///
    /// # Errors
    /// The new configuration was refused, by a check or by the data plane, and nothing changed; or
    /// the data plane is late, and its answer still counts when it comes.
    pub(super) async fn reload(
        self: &Arc<Self>,
        asker: &'static str,
    ) -> Result<Reloaded, AdminError> {
        let Ok(alone) = timeout(ASKER_WAIT, self.reloading.clone().lock_owned()).await else {
            let message = "the previous reload has not ended yet: try again";
            let outcome = Err(AdminError::new(ErrorCode::Busy, message));
            self.report(asker, &outcome);
            return outcome;
        };
        let reload = tokio::spawn(self.clone().carry_out(asker, alone));
        match timeout(ASKER_WAIT, reload).await {
            Ok(outcome) => outcome.unwrap_or_else(|_| Err(failed())),
            Err(_) => Err(too_late()),
        }
    }

    async fn carry_out(
        self: Arc<Self>,
        asker: &'static str,
        _alone: OwnedMutexGuard<()>,
    ) -> Result<Reloaded, AdminError> {
        let outcome = self.read_and_apply().await;
        self.report(asker, &outcome);
        outcome
    }

    async fn read_and_apply(self: &Arc<Self>) -> Result<Reloaded, AdminError> {
        // On another thread, because this one serves other requests while files are read.
        let control = self.clone();
        let prepared = spawn_blocking(move || control.prepare()).await;
        let Prepared { config, digests, identity, mut reloaded } =
            prepared.unwrap_or_else(|_| Err(failed()))?;
        if !reloaded.changes.is_empty() {
            let command = |reply| {
                let config = Box::new(config.clone());
                AdminCommand::Reload { config, identity: identity.clone(), reply }
            };
            let mut answer = self.plane.begin(command)?;
            reloaded.warnings.extend(at_last(&mut answer).await??);
            for plane in &self.others {
                // The others can use what the first one could.
                let taken = match plane.begin(command) {
                    Ok(mut answer) => at_last(&mut answer).await.and_then(|taken| taken),
                    Err(error) => Err(error),
                };
                if let Err(error) = taken {
                    tracing::error!(%error, "a worker has refused the new configuration");
                    let rest = "a worker keeps the old configuration: restart the daemon";
                    reloaded.warnings.push(format!("{rest} ({error})"));
                }
            }
        }
        self.apply(config, digests);
        Ok(reloaded)
    }

    /// Reads, checks and compares.
    fn prepare(&self) -> Result<Prepared<C>, AdminError> {
        let StartOptions { file, overrides, .. } = &self.start;
        let config = Config::load(file, overrides).map_err(|e| AdminError::from(&e))?;
        let digests = digests(&config.common.tls);
        let mut changes = {
            let running = self.running();
            let mut changes = changes(&running.config, &config)?;
            // A certificate file may have new contents under its old name.
            for (key, digest) in &digests {
                let is_known = changes.iter().any(|line| line.key == *key);
                if !is_known && running.digests.get(key) != Some(digest) {
                    changes.push(ChangeLine { key: key.clone(), from: None, to: None });
                }
            }
            changes
        };
        changes.sort_by(|a, b| a.key.cmp(&b.key));
        let (identity, found) = load_identity(&config.common.tls, C::ROLE);
        let identity = identity.filter(|_| found.errors.is_empty()).ok_or_else(|| {
            let key = found.errors.first().and_then(|error| error.split(':').next());
            invalid(file, key.unwrap_or("tls"), found.errors.join("\n"))
        })?;
        let is_tls = |line: &ChangeLine| line.key.starts_with("tls.");
        let identity = changes.iter().any(is_tls).then_some(identity);
        let mut warnings: Vec<_> = config.ignored.iter().map(ToString::to_string).collect();
        // The node's own certificate may have expired: its replacement may come next.
        warnings.extend(found.ended.into_iter().chain(found.warnings));
        let reloaded = Reloaded { changes, warnings };
        Ok(Prepared { config, digests, identity, reloaded })
    }

    /// Applies the rest after the data plane has taken the configuration.
    fn apply(&self, config: Config<C>, digests: Digests) {
        if let Some(log) = &self.start.log {
            log.apply(&config.common.log);
        }
        self.interfaces.send_replace(config.interfaces());
        let mut running = self.running();
        running.config = config;
        running.digests = digests;
        running.loaded_at = Timestamp::now();
        running.reloads += 1;
    }

    /// Logs an outcome and adds it to the event stream.
    fn report(&self, asker: &str, outcome: &Result<Reloaded, AdminError>) {
        match outcome {
            Ok(Reloaded { changes, warnings }) => {
                for warning in warnings {
                    tracing::warn!("{warning}");
                }
                for change in changes {
                    tracing::info!("{change}");
                }
                tracing::info!(asker, changes = changes.len(), "configuration reloaded");
                let event = AdminEvent::Reloaded { changes: changes.clone() };
                self.stream.push(Timestamp::now(), event);
            }
            Err(error) => {
                self.running().refused += 1;
                let (code, reason) = (error.code(), error.to_string());
                tracing::error!(asker, %code, reason, "reload refused: nothing was changed");
                let event = AdminEvent::ReloadRefused { error: (*error.0).clone() };
                self.stream.push(Timestamp::now(), event);
            }
        }
    }
}

fn failed() -> AdminError {
    AdminError::new(ErrorCode::Internal, "the reload failed inside the daemon")
}

fn invalid(file: &Path, key: &str, reason: String) -> AdminError {
    let mut refusal = AdminError::new(ErrorCode::InvalidConfig, reason).about_key(key);
    refusal.0.file = Some(PathBuf::from(file));
    refusal
}
