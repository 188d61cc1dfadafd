//! Values of a configuration as an operator would write them.

use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use polyrail_scheduler::ChainSpec;

use polyrail_config::{
    BusAddress, CarrierRole, CongestionControl, InterfaceName, LogFormat, LogLevel, Mode,
    ModemName, SocksReply,
};

/// A value as text; `None` for one that is not there.
pub(super) trait Shown {
    fn shown(&self) -> Option<String>;
}

macro_rules! as_displayed {
    ($($kind:ty),*) => {$(
        impl Shown for $kind {
            fn shown(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )*};
}
as_displayed!(bool, usize, u64, IpAddr, SocketAddr, NonZeroU16, NonZeroU32, IpNet, Mode);
as_displayed!(InterfaceName, CongestionControl, ModemName);

impl<T: Shown> Shown for Option<T> {
    fn shown(&self) -> Option<String> {
        self.as_ref().and_then(T::shown)
    }
}

impl<T: Shown> Shown for Vec<T> {
    fn shown(&self) -> Option<String> {
        let items: Vec<_> = self.iter().take(LISTED_MAX).filter_map(T::shown).collect();
        let more = if self.len() > LISTED_MAX { ", ..." } else { "" };
        Some(format!("[{}{more}]", items.join(", ")))
    }
}

impl Shown for Duration {
    fn shown(&self) -> Option<String> {
        Some(match self.subsec_millis() {
            0 => format!("{}s", self.as_secs()),
            _ => format!("{}ms", self.as_millis()),
        })
    }
}

impl Shown for PathBuf {
    fn shown(&self) -> Option<String> {
        Some(self.display().to_string())
    }
}

impl Shown for BusAddress {
    fn shown(&self) -> Option<String> {
        Some(self.as_str().to_owned())
    }
}

impl Shown for ChainSpec {
    fn shown(&self) -> Option<String> {
        Some(format!("[{}]", self.names().join(", ")))
    }
}

impl Shown for LogLevel {
    fn shown(&self) -> Option<String> {
        Some(self.as_str().to_owned())
    }
}

impl Shown for LogFormat {
    fn shown(&self) -> Option<String> {
        let name = match self {
            Self::Text => "text",
            Self::Json => "json",
        };
        Some(name.to_owned())
    }
}

impl Shown for CarrierRole {
    fn shown(&self) -> Option<String> {
        Some(self.as_str().to_owned())
    }
}

impl Shown for SocksReply {
    fn shown(&self) -> Option<String> {
        let name = match self {
            Self::Immediate => "immediate",
            Self::Dialed => "dialed",
        };
        Some(name.to_owned())
    }
}

/// The most entries of a list that are shown.
const LISTED_MAX: usize = 16;
