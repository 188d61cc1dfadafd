//! Counts the bytes of carriers with a cap: those of their interfaces, in both directions, as the
//! kernel counts them. So everything counts that the carrier's network sees: headers, handshakes,
//! probes, retransmissions, and traffic that bypasses the gateway.
//!
//! The counters are read every [`READ_EVERY`]. The account is written to its file at most every
//! [`WRITE_EVERY`], and at the end. It holds the kernel's counter, so that after a crash only bytes
//! of an interface that was removed meanwhile are missing.

mod account;
mod file;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::TryStreamExt;
use polyrail_config::Tables;
use rtnetlink::Handle;
use rtnetlink::packet_route::link::LinkAttribute;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use self::account::{Account, Reading};
use crate::{AdminCommand, Control, DataUsage, Metered};

/// How often the kernel's counters are read. A cap is exceeded by what its carrier carries in this
/// time, at most.
const READ_EVERY: Duration = Duration::from_millis(250);
/// How often the file is written at most.
const WRITE_EVERY: Duration = Duration::from_secs(5);
/// Timeout of the kernel's answer.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// Counts until the task is dropped or the sender of `wanted` is.
pub(crate) async fn watch<C: Tables>(
    control: Arc<Control<C>>,
    path: PathBuf,
    mut wanted: watch::Receiver<Vec<Metered>>,
) {
    let told = BTreeMap::new();
    let (dirty, written_at, complained) = (false, None, false);
    let mut meter = Meter { path, accounts: None, told, dirty, written_at, complained };
    let mut complained = false;
    loop {
        let list = wanted.borrow_and_update().clone();
        if !list.is_empty() {
            let counted = meter.count(&control, &list).await;
            if let Err(error) = counted
                && !std::mem::replace(&mut complained, true)
            {
                tracing::warn!(%error, "cannot read the interfaces' counters for caps; retrying");
            }
            meter.write(WRITE_EVERY).await;
        }
        let ended = tokio::select! {
            changed = wanted.changed() => changed.is_err(),
            () = sleep(READ_EVERY), if !list.is_empty() => false,
        };
        if ended {
            return meter.write(Duration::ZERO).await;
        }
    }
}

/// The accounts, and the latest reports.
struct Meter {
    path: PathBuf,
    /// By carrier; read when the first cap appears.
    accounts: Option<BTreeMap<String, Account>>,
    told: BTreeMap<String, DataUsage>,
    dirty: bool,
    /// When the file was last written.
    written_at: Option<Instant>,
    /// The log says that the file cannot be written.
    complained: bool,
}

impl Meter {
    /// Reads the counters and reports changed usage to the data plane.
    async fn count<C: Tables>(
        &mut self,
        control: &Control<C>,
        list: &[Metered],
    ) -> std::io::Result<()> {
        if self.accounts.is_none() {
            let path = self.path.clone();
            self.accounts = spawn_blocking(move || file::read(&path)).await.ok();
        }
        let Some(accounts) = &mut self.accounts else { return Ok(()) };
        let (connection, handle, _) = rtnetlink::new_connection()?;
        let connection = tokio::spawn(connection);
        let today = OffsetDateTime::from(SystemTime::now()).date();
        let mut changed = Vec::new();
        for Metered { carrier, interface, reset_day } in list {
            let account = accounts.entry(carrier.clone()).or_default();
            let reading = timeout(ANSWER_WAIT, read(&handle, interface)).await.ok().flatten();
            self.dirty |= account.take(today, interface, reading);
            let (since, until) = account.period(today, *reset_day);
            let used_bytes = account.used(since, until);
            let carrier = carrier.clone();
            let usage = DataUsage { carrier, used_bytes, since, until };
            if self.told.get(&usage.carrier) != Some(&usage) {
                changed.push(usage);
            }
        }
        connection.abort();
        let told = changed.clone();
        // A busy data plane learns it the next time.
        if !changed.is_empty() && control.hand_over(AdminCommand::Usage(changed)).is_ok() {
            self.told.extend(told.into_iter().map(|usage| (usage.carrier.clone(), usage)));
        }
        self.told.retain(|name, _| list.iter().any(|metered| metered.carrier == *name));
        Ok(())
    }

    /// Writes the file if something has changed, and it is at least this old.
    async fn write(&mut self, age: Duration) {
        let due = self.dirty && self.written_at.is_none_or(|at| at.elapsed() >= age);
        let Some(accounts) = self.accounts.clone().filter(|_| due) else { return };
        (self.dirty, self.written_at) = (false, Some(Instant::now()));
        let path = self.path.clone();
        // On another thread, because this one serves requests while a disk is slow.
        let written = spawn_blocking(move || file::write(&path, &accounts)).await;
        let Ok(Err(error)) = written else { return self.complained = false };
        self.dirty = true;
        if !std::mem::replace(&mut self.complained, true) {
            let path = self.path.display();
            tracing::error!(
                %path, %error,
                "cannot write the carriers' used data: a restart forgets it; retrying"
            );
        }
    }
}

/// The index and the counters of an interface; `None` if it is missing.
async fn read(handle: &Handle, interface: &str) -> Option<Reading> {
    let mut links = handle.link().get().match_name(interface.to_owned()).execute();
    let link = links.try_next().await.ok()??;
    let bytes = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Stats64(stats) => Some(stats.rx_bytes.wrapping_add(stats.tx_bytes)),
        _ => None,
    });
    Some(Reading { index: link.header.index, bytes: bytes? })
}

#[cfg(test)]
mod tests;
