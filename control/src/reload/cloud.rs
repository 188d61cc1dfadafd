//! What differs between two configurations of a cloud.

use std::collections::BTreeSet;

use super::{Change, Difference, RestartNeeded, Walk};
use polyrail_config::{Access, CloudConfig, CloudLinkDb, Dial, TunnelConfig};

/// How `new` differs from `old`.
///
/// # Errors
/// Differences that need a restart, by the names of their keys.
pub fn diff_cloud(old: &CloudConfig, new: &CloudConfig) -> Result<Difference, RestartNeeded> {
    // Taken apart by name, so that a new key cannot be forgotten here.
    let CloudConfig {
        mode,
        log,
        tls,
        listen,
        congestion,
        carrier_congestion,
        session,
        scheduler,
        access: Access { allow, deny, deny_ports },
        dial: Dial { timeout, ipv4, ipv6 },
        admin,
        tunnel: TunnelConfig { half_open_max, retry_above, server_id },
        linkdb,
    } = old;
    let mut walk = Walk::default();
    walk.fixed("mode", mode, &new.mode);
    walk.log(log, &new.log);
    walk.tls(tls, &new.tls);
    walk.fixed("listen", listen, &new.listen);

    let mut differs = walk.live("congestion", congestion, &new.congestion);
    let names = carrier_congestion.keys().chain(new.carrier_congestion.keys());
    for name in names.collect::<BTreeSet<_>>() {
        let (from, to) = (carrier_congestion.get(name), new.carrier_congestion.get(name));
        let key = format!("carrier_congestion.{name}");
        differs |= walk.live(&key, &from.cloned(), &to.cloned());
    }
    walk.change(differs, Change::Congestion);

    walk.session(session, &new.session);
    let differs = walk.live("scheduler.chain", &scheduler.chain, &new.scheduler.chain);
    walk.change(differs, Change::Chain);

    let mut differs = walk.live("access.allow", allow, &new.access.allow);
    differs |= walk.live("access.deny", deny, &new.access.deny);
    differs |= walk.live("access.deny_ports", deny_ports, &new.access.deny_ports);
    walk.change(differs, Change::Access);

    let mut differs = walk.live("dial.timeout", timeout, &new.dial.timeout);
    differs |= walk.live("dial.ipv4", ipv4, &new.dial.ipv4);
    differs |= walk.live("dial.ipv6", ipv6, &new.dial.ipv6);
    walk.change(differs, Change::Dial);

    walk.fixed("admin.socket", admin, &new.admin);
    walk.fixed("tunnel.half_open_max", half_open_max, &new.tunnel.half_open_max);
    walk.fixed("tunnel.retry_above", retry_above, &new.tunnel.retry_above);
    walk.fixed("tunnel.server_id", server_id, &new.tunnel.server_id);
    walk.cloud_linkdb(linkdb.as_ref(), new.linkdb.as_ref());
    walk.finish()
}

impl Walk {
    fn cloud_linkdb(&mut self, old: Option<&CloudLinkDb>, new: Option<&CloudLinkDb>) {
        let (Some(old), Some(new)) = (old, new) else {
            self.fixed("linkdb", &old, &new);
            return;
        };
        let CloudLinkDb { common, share } = old;
        let mut differs = self.linkdb(common, &new.common);
        differs |= self.live("linkdb.share", share, &new.share);
        self.change(differs, Change::LinkDb);
    }
}
