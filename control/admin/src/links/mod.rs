//! Watches the carriers' interfaces through netlink (rtnetlink(7)), without any privilege.
//!
//! The whole state of an interface goes to the data plane at the start and whenever something
//! about it changed. When the kernel had to drop notices, everything is asked for anew. A data
//! plane that is busy gets the latest state of each interface later; none is ever lost.

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt, TryStreamExt};
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use tokio::time::{sleep, timeout};

use self::table::Table;
use crate::{Command, DaemonConfig, Desk, LinkChange};

/// How long is waited before a failed watch begins anew.
const RETRY: Duration = Duration::from_secs(1);
/// How long is waited before a change is offered again to a data plane that had no room.
const OFFER_AGAIN: Duration = Duration::from_millis(100);
/// How long the kernel may take to list everything.
const DUMP_WAIT: Duration = Duration::from_secs(5);

/// Watches until the task is dropped.
pub(crate) async fn watch<C: DaemonConfig>(desk: Arc<Desk<C>>) {
    let mut outlet = Outlet { desk, sent: BTreeMap::new(), started: false };
    let mut complained = false;
    loop {
        let Err(error) = follow(&mut outlet).await else { continue };
        if !std::mem::replace(&mut complained, true) {
            tracing::warn!(%error, "cannot watch the interfaces; trying again");
        }
        sleep(RETRY).await;
    }
}

/// One netlink connection from its first listing on, until it fails.
async fn follow<C: DaemonConfig>(outlet: &mut Outlet<C>) -> io::Result<()> {
    let groups = [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
    let (connection, handle, notices) = new_multicast_connection(&groups)?;
    // Its end ends the notices too.
    let _connection = Guard(tokio::spawn(connection));
    track(outlet, &handle, notices.map(|(message, _)| message.payload)).await
}

/// Keeps the data plane informed by `notices`, and by listings where these have gaps.
async fn track<C: DaemonConfig>(
    outlet: &mut Outlet<C>,
    handle: &Handle,
    mut notices: impl Stream<Item = NetlinkPayload<RouteNetlinkMessage>> + Unpin,
) -> io::Result<()> {
    let mut wanted = outlet.desk.interfaces.subscribe();
    let mut table = list(handle).await?;
    loop {
        wanted.mark_unchanged();
        let pending = !outlet.offer(&table);
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
            () = sleep(OFFER_AGAIN), if pending => {}
        }
    }
}

/// All links and addresses as they are now.
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

/// A task that ends with its owner.
struct Guard(tokio::task::JoinHandle<()>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the data plane was told.
struct Outlet<C: DaemonConfig> {
    desk: Arc<Desk<C>>,
    sent: BTreeMap<String, LinkChange>,
    started: bool,
}

impl<C: DaemonConfig> Outlet<C> {
    /// Tells the data plane what it does not know yet; false when it had no room for all.
    fn offer(&mut self, table: &Table) -> bool {
        let wanted = self.desk.interfaces.borrow().clone();
        // Where all matter, one that vanished is told of once more and then forgotten: there is no
        // end to the names that interfaces may have had.
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
            if self.desk.hand_over(Command::Links(now.clone())).is_err() {
                return false;
            }
            if self.started {
                self.desk.link_changed(now.clone());
            }
            let LinkChange { interface, index, present, up, addresses } = &now;
            tracing::debug!(interface, index, present, up, ?addresses, "an interface's state");
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
