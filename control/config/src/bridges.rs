//! Intercepted bridges whose connections are lost because the IP firewall sees their packets inside
//! the bridge (the kernel's module `br_netfilter`, which Docker and Kubernetes enable).
//!
//! The interception rules then run before the kernel has decided that a packet leaves the bridge,
//! and not again afterwards. The socket that TPROXY assigns does not survive the way from the
//! bridge to the router (`skb_orphan` in `ip_rcv_core`, Linux 6.1), so the packet does not reach
//! our listener.
//!
//! This module only reads. It asks `ip`, because `/sys` may belong to another network namespace.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// A bridge and the setting that makes it lose intercepted connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LosingBridge {
    /// The bridge's interface.
    pub bridge: String,
    /// The setting, by the name that `sysctl` or `ip link` uses.
    setting: &'static str,
    /// Whether the setting is the bridge's own.
    own: bool,
}

impl fmt::Display for LosingBridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bridge, setting, own } = self;
        let whose = if *own { "its " } else { "" };
        write!(f, "{bridge} is a bridge and {whose}{setting} is 1")
    }
}

impl LosingBridge {
    /// The consequence, and the command that corrects it until the next boot.
    pub fn remedy(&self) -> String {
        let Self { bridge, setting, own } = self;
        let remedy = if *own {
            format!("ip link set {bridge} type bridge {setting} 0")
        } else {
            format!("sysctl -w {setting}=0")
        };
        format!("intercepted connections of its devices fail. Remedy: {remedy}")
    }
}

/// The bridges of this network namespace that would lose intercepted connections.
pub fn losing() -> Vec<LosingBridge> {
    let listing = Command::new("ip")
        .args(["-d", "-o", "link", "show", "type", "bridge"])
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output();
    let listing = listing.map(|output| output.stdout).unwrap_or_default();
    losing_in(Path::new("/proc/sys"), &String::from_utf8_lossy(&listing))
}

/// As [`losing`], but only those of `interfaces`.
pub fn losing_of<'a>(interfaces: impl IntoIterator<Item = &'a str>) -> Vec<LosingBridge> {
    let interfaces: Vec<&str> = interfaces.into_iter().collect();
    let mut losing = losing();
    losing.retain(|losing| interfaces.contains(&losing.bridge.as_str()));
    losing
}

/// `listing` has one line for each bridge, as `7: br0: <BROADCAST> ... nf_call_iptables 0 ...`.
fn losing_in(root: &Path, listing: &str) -> Vec<LosingBridge> {
    let is_on = |setting: &str| {
        let file = root.join("net/bridge").join(setting.trim_start_matches("net.bridge."));
        fs::read_to_string(file).is_ok_and(|value| value.trim() != "0")
    };
    let mut losing = Vec::new();
    for line in listing.lines() {
        let Some(name) = line.split(':').nth(1) else { continue };
        // A bridge that is the end of a pair is listed as `name@other`.
        let bridge = name.trim().split('@').next().unwrap_or_default().to_owned();
        for (global, own) in SETTINGS {
            let is_own = line.contains(&format!(" {own} 1 "));
            if is_own || is_on(global) {
                let setting = if is_own { own } else { global };
                losing.push(LosingBridge { bridge: bridge.clone(), setting, own: is_own });
            }
        }
    }
    losing
}

/// The setting of all bridges and that of one bridge, by family; either suffices
/// (Linux `net/bridge/br_netfilter_hooks.c`, `br_nf_pre_routing`).
const SETTINGS: [(&str, &str); 2] = [
    ("net.bridge.bridge-nf-call-iptables", "nf_call_iptables"),
    ("net.bridge.bridge-nf-call-ip6tables", "nf_call_ip6tables"),
];

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "2: br0: <BROADCAST> mtu 1500 \\ bridge nf_call_iptables 0 \
                           nf_call_ip6tables 0 nf_call_arptables 1 addrgenmode eui64 \n\
                           9: lan0: <UP> mtu 1500 \\ bridge nf_call_iptables 1 \
                           nf_call_ip6tables 0 nf_call_arptables 0 addrgenmode eui64 \n";

    fn texts(settings: &[(&str, &str)]) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("net/bridge");
        fs::create_dir_all(&folder).unwrap();
        for (setting, value) in settings {
            fs::write(folder.join(setting), value).unwrap();
        }
        losing_in(root.path(), LISTING).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn bridges_with_a_setting_of_their_own_or_of_all_are_found() {
        let own = "lan0 is a bridge and its nf_call_iptables is 1";
        assert_eq!(texts(&[]), [own]);
        assert_eq!(texts(&[("bridge-nf-call-iptables", "0\n")]), [own]);
        assert_eq!(
            texts(&[("bridge-nf-call-iptables", "1\n"), ("bridge-nf-call-ip6tables", "1\n")]),
            [
                "br0 is a bridge and net.bridge.bridge-nf-call-iptables is 1",
                "br0 is a bridge and net.bridge.bridge-nf-call-ip6tables is 1",
                own,
                "lan0 is a bridge and net.bridge.bridge-nf-call-ip6tables is 1",
            ]
        );
    }

    #[test]
    fn remedy_is_the_command_for_the_setting() {
        let own = LosingBridge { bridge: "br0".to_owned(), setting: SETTINGS[0].1, own: true };
        assert!(own.remedy().ends_with("ip link set br0 type bridge nf_call_iptables 0"));
        let all = LosingBridge { bridge: "br0".to_owned(), setting: SETTINGS[1].0, own: false };
        assert!(all.remedy().ends_with("sysctl -w net.bridge.bridge-nf-call-ip6tables=0"));
    }

    #[test]
    fn packaged_settings_of_a_gateway_turn_all_off() {
        let file = "../../packaging/sysctl.d/61-polyrail-gateway.conf";
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let text = fs::read_to_string(file).unwrap();
        for (setting, _) in SETTINGS {
            assert!(text.contains(&format!("\n-{setting} = 0\n")), "{text}");
        }
    }
}
