//! The configuration files of the lab's daemons. Tests change single keys.

use std::path::Path;

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::addresses::{BYPASS, CLOUD, CLOUD_PORT, Family, GATEWAY, OPENED, SERVER, SOCKS5_PORT};

/// The name in the gateway's certificate.
pub const GATEWAY_NAME: &str = "train-1";
/// The name in the cloud's certificate.
pub const CLOUD_NAME: &str = "cloud";

/// The TOML file of a daemon before it is written.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    root: Table,
}

impl Configuration {
    /// The lab's gateway with carriers of these names on `wan0`, `wan1` and so on.
    pub fn gateway(keys: &Path, carriers: &[String]) -> Configuration {
        let mut file = Configuration::default();
        file.set_identity(keys, GATEWAY_NAME);
        file.set("cloud.name", CLOUD_NAME);
        file.set("cloud.addresses", strings(CLOUD.both(CLOUD_PORT)));
        file.set("intercept.interfaces", strings(["lan0"]));
        file.set("intercept.bypass", strings(BYPASS));
        file.set("dns.resolver", SERVER.at(Family::V4, 53).to_string());
        file.set("socks5.listen", strings(GATEWAY.both(SOCKS5_PORT)));
        let carriers = carriers.iter().enumerate().map(|(index, name)| {
            let mut carrier = Table::new();
            carrier.insert("name".into(), Value::from(name.as_str()));
            carrier.insert("interface".into(), Value::from(format!("wan{index}")));
            Value::Table(carrier)
        });
        file.root.insert("carrier".into(), Value::Array(carriers.collect()));
        file
    }

    /// The lab's cloud, whose access list permits the server's prefixes.
    pub fn cloud(keys: &Path) -> Configuration {
        let mut file = Configuration::default();
        file.set_identity(keys, CLOUD_NAME);
        file.set("listen", strings([format!("[::]:{CLOUD_PORT}")]));
        file.set("access.allow", strings(OPENED));
        // All scenarios with clouds of several workers.
        if let Some(workers) = std::env::var("POLYRAIL_WORKERS").ok().and_then(|n| n.parse().ok()) {
            let workers: i64 = workers;
            file.set("workers", workers);
        }
        file
    }

    /// Sets a key given by its dotted path and creates missing tables.
    pub fn set(&mut self, path: &str, value: impl Into<Value>) {
        let mut table = &mut self.root;
        let (tables, key) = path.rsplit_once('.').map_or((None, path), |(a, b)| (Some(a), b));
        for name in tables.iter().flat_map(|names| names.split('.')) {
            let entry = table.entry(name).or_insert_with(|| Value::Table(Table::new()));
            if !entry.is_table() {
                *entry = Value::Table(Table::new());
            }
            let Value::Table(next) = entry else { return };
            table = next;
        }
        table.insert(key.into(), value.into());
    }

    /// The value of a key given by its dotted path.
    pub fn get(&self, path: &str) -> Option<&Value> {
        let (first, rest) = path.split_once('.').unwrap_or((path, ""));
        let rest = rest.split('.').filter(|key| !key.is_empty());
        rest.fold(self.root.get(first), |value, key| value?.get(key))
    }

    /// Sets a key of the carrier at `index`.
    pub fn set_carrier(&mut self, index: usize, key: &str, value: impl Into<Value>) {
        let carrier = self.root.get_mut("carrier").and_then(|list| list.get_mut(index));
        if let Some(Value::Table(carrier)) = carrier {
            carrier.insert(key.into(), value.into());
        }
    }

    /// Removes the last carrier.
    pub fn remove_last_carrier(&mut self) {
        if let Some(Value::Array(carriers)) = self.root.get_mut("carrier") {
            carriers.pop();
        }
    }

    /// Swaps two carriers.
    pub fn swap_carriers(&mut self, first: usize, second: usize) {
        if let Some(Value::Array(carriers)) = self.root.get_mut("carrier") {
            carriers.swap(first, second);
        }
    }

    /// Removes a table or key of the top level.
    pub fn remove(&mut self, name: &str) {
        self.root.remove(name);
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, toml::to_string(&self.root)?)
            .with_context(|| format!("{}", path.display()))
    }

    /// Sets the certificate and key of this node.
    pub fn set_identity(&mut self, keys: &Path, name: &str) {
        let file = |end: &str| keys.join(format!("{name}.{end}")).display().to_string();
        self.set("log.level", "debug");
        self.set("tls.certificate", file("crt"));
        self.set("tls.key", file("key"));
        self.set("tls.authority", keys.join("ca.crt").display().to_string());
    }
}

/// A TOML list of strings.
pub fn strings<T: ToString>(items: impl IntoIterator<Item = T>) -> Value {
    Value::Array(items.into_iter().map(|item| Value::from(item.to_string())).collect())
}
