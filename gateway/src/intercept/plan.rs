//! The traffic to intercept, taken from the configuration.

use ipnet::IpNet;
use polyrail_config::{GatewayConfig, InterfaceName, OnExit, OtherTraffic, PrivateTraffic};
use polyrail_model::Families;

use super::InterceptError;

/// The checked wishes of the operator. All names in it can stand in a rule as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub(super) interfaces: Vec<String>,
    pub(super) port: u16,
    pub(super) dns_port: Option<u16>,
    pub(super) mark: u32,
    pub(super) table: u32,
    pub(super) bypass: Vec<IpNet>,
    pub(super) private: PrivateTraffic,
    pub(super) families: Families,
    pub(super) other: Other,
    on_exit: OnExit,
}

/// The treatment of traffic that is neither TCP nor DNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Other {
    /// Rejected as administratively prohibited.
    Reject,
    /// Forwarded out of this interface, with its address as source.
    Direct {
        /// The carrier's interface.
        interface: String,
    },
}

impl Plan {
    /// The plan of a configuration.
    ///
    /// # Errors
    /// There is no `[intercept]`, an interface's name cannot stand in a rule, or the carrier of
    /// `direct:` has no interface.
    pub fn from_config(config: &GatewayConfig) -> Result<Self, InterceptError> {
        let intercept = config.intercept.as_ref().ok_or(InterceptError::NotConfigured)?;
        let interfaces = intercept.interfaces.iter().map(rule_name).collect::<Result<_, _>>()?;
        let other = match &intercept.other {
            OtherTraffic::Reject => Other::Reject,
            OtherTraffic::Direct(carrier) => {
                let found = config.carriers.iter().find(|c| c.name == *carrier);
                let interface = found
                    .and_then(|carrier| carrier.interface.as_ref())
                    .ok_or_else(|| InterceptError::DirectCarrier(carrier.to_string()))?;
                Other::Direct { interface: rule_name(interface)? }
            }
        };
        Ok(Self {
            interfaces,
            port: intercept.port.get(),
            dns_port: config.dns.as_ref().map(|dns| dns.port.get()),
            mark: intercept.mark.get(),
            table: intercept.table,
            bypass: intercept.bypass.clone(),
            private: intercept.private,
            families: Families { v4: intercept.ipv4, v6: intercept.ipv6 },
            other,
            on_exit: intercept.on_exit,
        })
    }

    /// The families that the configuration lets be intercepted; the others are rejected.
    pub fn families(&self) -> Families {
        self.families
    }

    /// What becomes of the rules when the daemon ends.
    pub fn on_exit(&self) -> OnExit {
        self.on_exit
    }

    /// The treatment of traffic that is neither TCP nor DNS.
    pub fn other(&self) -> &Other {
        &self.other
    }

    /// The mark of packets that are forwarded out of a carrier: the one after `mark`.
    pub(super) fn direct_mark(&self) -> u32 {
        self.mark.checked_add(1).unwrap_or(1)
    }

    /// The routing table of forwarded packets: the one after `table` that is not the kernel's.
    pub(super) fn direct_table(&self) -> u32 {
        match self.table.checked_add(1) {
            None => 1,
            Some(253..=255) => 256,
            Some(table) => table,
        }
    }
}

/// A kernel interface name may hold quotes and wildcards; a rule may not.
fn rule_name(interface: &InterfaceName) -> Result<String, InterceptError> {
    let name = interface.as_str();
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-' | b'@' | b'+');
    if name.bytes().all(plain) && !name.starts_with('-') {
        Ok(name.to_owned())
    } else {
        Err(InterceptError::Interface(name.to_owned()))
    }
}
