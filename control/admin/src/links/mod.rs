//! Watches the carriers' interfaces through netlink (rtnetlink(7)), without any privilege.
//!
//! The data plane receives the state of each interface at the start and after each change. If the
//! kernel dropped messages, all state is listed again. A busy data plane receives the latest state
//! of each interface later.

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt, TryStreamExt};
use polyrail_config::Tables;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::table::Table;
use crate::{AdminCommand, Control, LinkChange};

/// Delay before a failed watch is restarted.
const RETRY: Duration = Duration::from_secs(1);
/// Delay before a change is sent again to a busy data plane.
const REPORT_AGAIN: Duration = Duration::from_millis(100);
/// Timeout of a listing.
const DUMP_WAIT: Duration = Duration::from_secs(5);

/// Watches until the task is dropped.
pub(crate) async fn watch<C: Tables>(control: Arc<Control<C>>) {
    let mut reporter = Reporter { control, sent: BTreeMap::new(), started: false };
    let mut complained = false;
    loop {
        let Err(error) = follow(&mut reporter).await else { continue };
        if !std::mem::replace(&mut complained, true) {
            tracing::warn!(%error, "cannot watch interfaces; retrying");
        }
        sleep(RETRY).await;
    }
}

/// Follows one netlink connection until it fails.
async fn follow<C: Tables>(reporter: &mut Reporter<C>) -> io::Result<()> {
    let groups = [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
    let (connection, handle, notices) = new_multicast_connection(&groups)?;
    // Aborts the connection when this function ends.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    track(reporter, &handle, notices.map(|(message, _)| message.payload)).await
}

/// Reports changes from `notices`, and from listings after gaps.
async fn track<C: Tables>(
    reporter: &mut Reporter<C>,
    handle: &Handle,
    mut notices: impl Stream<Item = NetlinkPayload<RouteNetlinkMessage>> + Unpin,
) -> io::Result<()> {
    let mut wanted = reporter.control.interfaces.subscribe();
    let mut table = list(handle).await?;
    loop {
        wanted.mark_unchanged();
        let pending = !reporter.report(&table);
        tokio::select! {
            notice = notices.next() => match notice {
                Some(NetlinkPayload::InnerMessage(message)) => table.apply(&message),
                Some(NetlinkPayload::Overrun(_)) => table = list(handle).await?,
                Some(_) => {}
                None => return Err(io::ErrorKind::BrokenPipe.into()),
            },
            changed = wanted.changed() => {
                if changed.is_err() {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
            }
            () = sleep(REPORT_AGAIN), if pending => {}
        }
    }
}

/// Lists all links and addresses.
async fn list(handle: &Handle) -> io::Result<Table> {
    let listed = async {
        let mut table = Table::default();
        let mut links = handle.link().get().execute();
        while let Some(link) = links.try_next().await? {
            table.apply(&RouteNetlinkMessage::NewLink(link));
        }
        let mut addresses = handle.address().get().execute();
        while let Some(address) = addresses.try_next().await? {
            table.apply(&RouteNetlinkMessage::NewAddress(address));
        }
        Ok(table)
    };
    let listed = timeout(DUMP_WAIT, listed).await;
    listed.map_err(io::Error::from)?.map_err(|error: rtnetlink::Error| io::Error::other(error))
}

/// Reports changes to the data plane.
struct Reporter<C: Tables> {
    control: Arc<Control<C>>,
    sent: BTreeMap<String, LinkChange>,
    started: bool,
}

impl<C: Tables> Reporter<C> {
    /// Sends changed states to the data plane; returns false if its queue is full.
    fn report(&mut self, table: &Table) -> bool {
        let wanted = self.control.interfaces.borrow().clone();
        // If all interfaces matter, a removed interface is reported once and then dropped, because
        // the number of names is unbounded.
        let forgets = wanted.is_none();
        let names: BTreeSet<String> = match wanted {
            Some(wanted) => wanted.into_iter().collect(),
            None => table.names().map(str::to_owned).chain(self.sent.keys().cloned()).collect(),
        };
        self.sent.retain(|name, _| names.contains(name));
        for name in names {
            let now = table.state(&name);
            let before = self.sent.get(&name);
            if before == Some(&now) {
                if forgets && !now.present {
                    self.sent.remove(&name);
                }
                continue;
            }
            if self.control.hand_over(AdminCommand::Links(now.clone())).is_err() {
                return false;
            }
            if self.started {
                self.control.link_changed(now.clone());
            }
            let LinkChange { interface, index, present, up, addresses } = &now;
            tracing::debug!(interface, index, present, up, ?addresses, "interface state");
            if forgets && !now.present {
                self.sent.remove(&name);
            } else {
                self.sent.insert(name, now);
            }
        }
        self.started = true;
        true
    }
}

#[cfg(test)]
mod tests;
