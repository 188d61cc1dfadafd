//! What differs between two configurations of a gateway.

use std::collections::BTreeSet;

use super::{CarrierKey, Change, ChangeLine, Difference, RestartNeeded, Walk};
use polyrail_config::{
    Carrier, CloudPeer, Dns, GatewayConfig, Intercept, LinkDbConfig, MessageBus, Restart, Socks5,
    TelemetryConfig, TlsConfig, Users,
};

/// How `new` differs from `old`.
///
/// # Errors
/// Differences that need a restart, by the names of their keys.
pub fn diff_gateway(old: &GatewayConfig, new: &GatewayConfig) -> Result<Difference, RestartNeeded> {
    // Taken apart by name, so that a new key cannot be forgotten here.
    let GatewayConfig {
        mode,
        log,
        tls,
        cloud: CloudPeer { name, addresses },
        session,
        scheduler,
        carriers,
        restart,
        admin,
        intercept,
        dns,
        socks5,
        users: Users { key },
        telemetry,
        linkdb,
    } = old;
    let mut walk = Walk::default();
    let differs = walk.live("mode", mode, &new.mode);
    walk.change(differs, Change::Mode);
    walk.log(log, &new.log);
    walk.tls(tls, &new.tls);
    walk.fixed("cloud.name", name, &new.cloud.name);
    let differs = walk.live("cloud.addresses", addresses, &new.cloud.addresses);
    walk.change(differs, Change::CloudAddresses);
    walk.session(session, &new.session);
    let differs = walk.live("scheduler.chain", &scheduler.chain, &new.scheduler.chain);
    walk.change(differs, Change::Chain);
    walk.carriers(carriers, &new.carriers);
    walk.restart(restart, &new.restart);
    walk.fixed("admin.socket", admin, &new.admin);
    walk.intercept(intercept.as_ref(), new.intercept.as_ref());
    walk.dns(dns.as_ref(), new.dns.as_ref());
    walk.socks5(socks5.as_ref(), new.socks5.as_ref());
    walk.fixed("users.key", key, &new.users.key);
    walk.telemetry(telemetry, &new.telemetry);
    walk.gateway_linkdb(linkdb.as_ref(), new.linkdb.as_ref());
    walk.finish()
}

impl Walk {
    /// The paths of certificate files; what is in the files is compared elsewhere.
    pub(super) fn tls(&mut self, old: &TlsConfig, new: &TlsConfig) {
        let TlsConfig { certificate, key, authority, revocations } = old;
        let mut differs = self.live("tls.certificate", certificate, &new.certificate);
        differs |= self.live("tls.key", key, &new.key);
        differs |= self.live("tls.authority", authority, &new.authority);
        differs |= self.live("tls.revocations", revocations, &new.revocations);
        self.change(differs, Change::Certificates);
    }

    fn carriers(&mut self, old: &[Carrier], new: &[Carrier]) {
        let in_list = |list: &[Carrier], wanted: &Carrier| {
            list.iter().any(|carrier| carrier.name == wanted.name)
        };
        for gone in old.iter().filter(|carrier| !in_list(new, carrier)) {
            let key = format!("carrier.{}", gone.name);
            self.found.lines.push(ChangeLine { key, from: Some(way(gone)), to: None });
            self.found.changes.push(Change::CarrierRemoved(gone.name.clone()));
        }
        for fresh in new {
            match old.iter().find(|carrier| carrier.name == fresh.name) {
                Some(before) => self.carrier(before, fresh),
                None => {
                    let key = format!("carrier.{}", fresh.name);
                    self.found.lines.push(ChangeLine { key, from: None, to: Some(way(fresh)) });
                    self.found.changes.push(Change::CarrierAdded(fresh.name.clone()));
                }
            }
        }
        let kept = |list: &[Carrier], other: &[Carrier]| {
            let both = list.iter().filter(|carrier| in_list(other, carrier));
            both.map(|carrier| carrier.name.to_string()).collect::<Vec<_>>()
        };
        let (from, to) = (kept(old, new), kept(new, old));
        if from != to {
            let [from, to] = [from, to].map(|names| Some(names.join(", ")));
            self.found.lines.push(ChangeLine { key: "carrier".to_owned(), from, to });
            self.found.changes.push(Change::CarrierOrder);
        }
    }

    fn carrier(&mut self, old: &Carrier, new: &Carrier) {
        let Carrier {
            name,
            interface,
            source,
            addresses,
            congestion,
            mode,
            metered,
            qlog,
            modem,
            role,
            enabled,
        } = old;
        let key = |key: &str| format!("carrier.{name}.{key}");
        let rows = [
            (CarrierKey::Interface, self.live(&key("interface"), interface, &new.interface)),
            (CarrierKey::Source, self.live(&key("source"), source, &new.source)),
            (CarrierKey::Addresses, self.live(&key("addresses"), addresses, &new.addresses)),
            (CarrierKey::Congestion, self.live(&key("congestion"), congestion, &new.congestion)),
            (CarrierKey::Mode, self.live(&key("mode"), mode, &new.mode)),
            (CarrierKey::Metered, self.live(&key("metered"), metered, &new.metered)),
            (CarrierKey::Qlog, self.live(&key("qlog"), qlog, &new.qlog)),
            (CarrierKey::Modem, self.live(&key("modem"), modem, &new.modem)),
            (CarrierKey::Role, self.live(&key("role"), role, &new.role)),
            (CarrierKey::Enabled, self.live(&key("enabled"), enabled, &new.enabled)),
        ];
        let keys: BTreeSet<_> = rows.iter().filter(|row| row.1).map(|row| row.0).collect();
        if !keys.is_empty() {
            self.found.changes.push(Change::CarrierChanged(name.clone(), keys));
        }
    }

    fn restart(&mut self, old: &Restart, new: &Restart) {
        let Restart { enabled, early_data, attempts_max, interval } = old;
        let mut differs = self.live("restart.enabled", enabled, &new.enabled);
        differs |= self.live("restart.early_data", early_data, &new.early_data);
        differs |= self.live("restart.attempts_max", attempts_max, &new.attempts_max);
        differs |= self.live("restart.interval", interval, &new.interval);
        self.change(differs, Change::Restart);
    }

    fn intercept(&mut self, old: Option<&Intercept>, new: Option<&Intercept>) {
        let (Some(old), Some(new)) = (old, new) else {
            self.fixed("intercept", &old, &new);
            return;
        };
        let Intercept {
            port,
            interfaces,
            mark,
            table,
            bypass,
            private,
            ipv4,
            ipv6,
            other,
            on_exit,
        } = old;
        self.fixed("intercept.port", port, &new.port);
        self.fixed("intercept.interfaces", interfaces, &new.interfaces);
        self.fixed("intercept.mark", mark, &new.mark);
        self.fixed("intercept.table", table, &new.table);
        self.fixed("intercept.bypass", bypass, &new.bypass);
        self.fixed("intercept.private", private, &new.private);
        self.fixed("intercept.ipv4", ipv4, &new.ipv4);
        self.fixed("intercept.ipv6", ipv6, &new.ipv6);
        self.fixed("intercept.other", other, &new.other);
        self.fixed("intercept.on_exit", on_exit, &new.on_exit);
    }

    fn dns(&mut self, old: Option<&Dns>, new: Option<&Dns>) {
        let (Some(old), Some(new)) = (old, new) else {
            self.fixed("dns", &old, &new);
            return;
        };
        let Dns { port, resolver } = old;
        self.fixed("dns.port", port, &new.port);
        let differs = self.live("dns.resolver", resolver, &new.resolver);
        self.change(differs, Change::Resolver);
    }

    fn socks5(&mut self, old: Option<&Socks5>, new: Option<&Socks5>) {
        let (Some(old), Some(new)) = (old, new) else {
            self.fixed("socks5", &old, &new);
            return;
        };
        let Socks5 { listen, reply } = old;
        self.fixed("socks5.listen", listen, &new.listen);
        let differs = self.live("socks5.reply", reply, &new.reply);
        self.change(differs, Change::SocksReply);
    }

    fn telemetry(&mut self, old: &TelemetryConfig, new: &TelemetryConfig) {
        let TelemetryConfig { gpsd, modem_manager, replay } = old;
        let mut differs = self.live("telemetry.gpsd", gpsd, &new.gpsd);
        let wanted = (modem_manager.is_some(), new.modem_manager.is_some());
        differs |= self.live("telemetry.modem_manager", &wanted.0, &wanted.1);
        let address = |bus: &Option<MessageBus>| match bus {
            Some(MessageBus::At(address)) => Some(address.clone()),
            Some(MessageBus::System) | None => None,
        };
        let addresses = (address(modem_manager), address(&new.modem_manager));
        differs |= self.live("telemetry.modem_manager_bus", &addresses.0, &addresses.1);
        differs |= self.live("telemetry.replay", replay, &new.replay);
        self.change(differs, Change::Telemetry);
    }

    fn gateway_linkdb(&mut self, old: Option<&LinkDbConfig>, new: Option<&LinkDbConfig>) {
        let (Some(old), Some(new)) = (old, new) else {
            self.fixed("linkdb", &old, &new);
            return;
        };
        let differs = self.linkdb(old, new);
        self.change(differs, Change::LinkDb);
    }
}

/// Where a carrier goes, in a few words.
fn way(carrier: &Carrier) -> String {
    let interface = carrier.interface.as_ref().map(|name| format!("interface {name}"));
    let source = carrier.source.map(|address| format!("source {address}"));
    let words: Vec<_> = interface.into_iter().chain(source).collect();
    if words.is_empty() { "any interface".to_owned() } else { words.join(", ") }
}
