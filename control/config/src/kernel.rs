//! The kernel's settings that tunnels need.
//!
//! This module only reads them: the packages ship `sysctl.d` and `modules-load.d` files, and each
//! remedy is a command. A setting that is invisible, as in some network namespaces, is not a
//! finding.

use std::fmt;
use std::fs;
use std::path::Path;

/// One setting with its current value.
#[derive(Debug)]
pub struct Reading {
    check: &'static Check,
    /// Its value; `None` when it is invisible here.
    pub found: Option<String>,
    /// Whether the value is good; true also when it is invisible.
    pub good: bool,
}

/// All settings, in a fixed order.
pub fn readings() -> Vec<Reading> {
    readings_in(Path::new("/proc/sys"))
}

/// The settings with bad values.
pub fn findings() -> Vec<Reading> {
    readings().into_iter().filter(|reading| !reading.good).collect()
}

fn readings_in(root: &Path) -> Vec<Reading> {
    let reading = |check: &'static Check| {
        let found = match check.setting {
            RP_FILTER => strict_interfaces(root),
            setting => value(root, setting),
        };
        let good = found.as_deref().is_none_or(check.good);
        Reading { check, found, good }
    };
    CHECKS.iter().map(reading).collect()
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.found.as_deref().unwrap_or("not visible here");
        let Check { setting, wanted, why, remedy, .. } = self.check;
        if self.good {
            return write!(f, "{setting} is {found}");
        }
        write!(f, "{setting} is {found}, should be {wanted}: {why}. Remedy: {remedy}")
    }
}

#[derive(Debug)]
struct Check {
    /// The name that `sysctl` uses.
    setting: &'static str,
    /// The good values in words.
    wanted: &'static str,
    good: fn(&str) -> bool,
    /// The consequence of a bad value.
    why: &'static str,
    /// The command that corrects it until the next boot.
    remedy: &'static str,
}

/// The largest socket buffer that a path may need: 100 Mbit/s times 300 ms.
const BUFFER_LEAST: u64 = 4 * 1024 * 1024;
const RP_FILTER: &str = "net.ipv4.conf.*.rp_filter";

const CHECKS: &[Check] = &[
    Check {
        setting: "net.ipv4.tcp_slow_start_after_idle",
        wanted: "0",
        good: |found| found == "0",
        why: "an idle tunnel returns to slow start",
        remedy: "sysctl -w net.ipv4.tcp_slow_start_after_idle=0",
    },
    Check {
        setting: "net.ipv4.tcp_available_congestion_control",
        wanted: "a list with bbr",
        good: has_bbr,
        why: "carriers with congestion = \"bbr\" cannot use it",
        remedy: "modprobe tcp_bbr",
    },
    Check {
        setting: "net.ipv4.tcp_allowed_congestion_control",
        wanted: "a list with bbr",
        good: has_bbr,
        why: "an unprivileged daemon may not choose bbr",
        remedy: "sysctl -w net.ipv4.tcp_allowed_congestion_control=\"reno cubic bbr\"",
    },
    Check {
        setting: "net.ipv4.tcp_fastopen",
        wanted: "3 (both sides)",
        good: |found| found.parse::<u32>().is_ok_and(|bits| bits & 3 == 3),
        why: "new connections cannot save a round trip",
        remedy: "sysctl -w net.ipv4.tcp_fastopen=3",
    },
    Check {
        setting: "net.ipv4.tcp_mtu_probing",
        wanted: "1 (after a black hole) or 2 (always)",
        good: |found| matches!(found, "1" | "2"),
        why: "a link that silently drops long packets stops TCP connections",
        remedy: "sysctl -w net.ipv4.tcp_mtu_probing=1",
    },
    Check {
        setting: RP_FILTER,
        wanted: "loose (2) or off (0) on every interface",
        good: |found| !found.starts_with("strict"),
        why: "answers that come in through another carrier than the default route's are dropped",
        remedy: "sysctl -w net.ipv4.conf.all.rp_filter=2",
    },
    Check {
        setting: "net.ipv4.tcp_rmem",
        wanted: "a largest value of at least 4194304",
        good: last_is_enough,
        why: "a fast carrier with a long round trip cannot be filled",
        remedy: "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 16777216\"",
    },
    Check {
        setting: "net.ipv4.tcp_wmem",
        wanted: "a largest value of at least 4194304",
        good: last_is_enough,
        why: "a fast carrier with a long round trip cannot be filled",
        remedy: "sysctl -w net.ipv4.tcp_wmem=\"4096 65536 16777216\"",
    },
    Check {
        setting: "net.core.rmem_max",
        wanted: "at least 4194304",
        good: last_is_enough,
        why: "QUIC tunnels and passengers' datagrams have short queues while a daemon is busy",
        remedy: "sysctl -w net.core.rmem_max=4194304",
    },
    Check {
        setting: "net.core.wmem_max",
        wanted: "at least 4194304",
        good: last_is_enough,
        why: "QUIC tunnels have short queues",
        remedy: "sysctl -w net.core.wmem_max=4194304",
    },
];

fn has_bbr(found: &str) -> bool {
    found.split_whitespace().any(|name| name == "bbr")
}

fn last_is_enough(found: &str) -> bool {
    let last = found.split_whitespace().last().and_then(|number| number.parse::<u64>().ok());
    last.is_some_and(|bytes| bytes >= BUFFER_LEAST)
}

fn value(root: &Path, setting: &str) -> Option<String> {
    let text = fs::read_to_string(root.join(setting.replace('.', "/"))).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The interfaces with a strict filter: the larger of `all` and the interface's own value counts
/// (Linux `Documentation/networking/ip-sysctl.rst`, `rp_filter`).
fn strict_interfaces(root: &Path) -> Option<String> {
    let folder = root.join("net/ipv4/conf");
    let number = |name: &str| -> Option<u32> {
        let text = fs::read_to_string(folder.join(name).join("rp_filter")).ok()?;
        text.trim().parse().ok()
    };
    let all = number("all")?;
    let entries =
        fs::read_dir(&folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let named = entries.filter(|name| !matches!(name.as_str(), "all" | "lo"));
    let mut strict: Vec<_> =
        named.filter(|name| number(name).is_some_and(|own| own.max(all) == 1)).collect();
    strict.sort();
    if strict.is_empty() {
        return Some("loose or off".to_owned());
    }
    Some(format!("strict on {}", strict.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree as `/proc/sys` with the given settings.
    fn tree(settings: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (setting, value) in settings {
            let file = root.path().join(setting.replace('.', "/"));
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{value}\n")).unwrap();
        }
        root
    }

    fn bad(settings: &[(&str, &str)]) -> Vec<Reading> {
        let root = tree(settings);
        readings_in(root.path()).into_iter().filter(|reading| !reading.good).collect()
    }

    /// The settings of the packaged file.
    fn packaged() -> Vec<(String, String)> {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/sysctl.d/60-polyrail.conf");
        let text = fs::read_to_string(file).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        lines
            .map(|line| {
                let (name, value) = line.split_once('=').unwrap();
                (name.trim().trim_start_matches('-').to_owned(), value.trim().to_owned())
            })
            .collect()
    }

    #[test]
    fn each_bad_setting_is_reported_with_its_remedy() {
        let rows = [
            ("net.ipv4.tcp_slow_start_after_idle", "1", "0"),
            ("net.ipv4.tcp_available_congestion_control", "reno cubic", "reno\tcubic bbr"),
            ("net.ipv4.tcp_allowed_congestion_control", "reno cubic bbr2", "bbr"),
            ("net.ipv4.tcp_fastopen", "1", "0x3".trim_start_matches("0x")),
            ("net.ipv4.tcp_mtu_probing", "0", "1"),
            ("net.ipv4.tcp_rmem", "4096\t131072\t2097152", "4096\t131072\t6291456"),
            ("net.ipv4.tcp_wmem", "garbage", "4096 16384 4194304"),
            ("net.core.rmem_max", "212992", "4194304"),
            ("net.core.wmem_max", "212992", "8388608"),
        ];
        for (setting, wrong, right) in rows {
            let found = bad(&[(setting, wrong)]);
            assert_eq!(found.len(), 1, "{setting}");
            let text = found[0].to_string();
            assert!(text.starts_with(setting) && text.contains("Remedy: "), "{text}");
            assert!(bad(&[(setting, right)]).is_empty(), "{setting}");
        }
    }

    #[test]
    fn larger_reverse_path_filter_counts() {
        let case = |all: &str, own: &str| {
            let settings = [
                ("net.ipv4.conf.all.rp_filter", all),
                ("net.ipv4.conf.lo.rp_filter", "1"),
                ("net.ipv4.conf.wwan0.rp_filter", own),
            ];
            bad(&settings).into_iter().map(|reading| reading.found.unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(case("0", "1"), ["strict on wwan0"]);
        assert_eq!(case("1", "0"), ["strict on wwan0"]);
        for (all, own) in [("0", "0"), ("2", "1"), ("1", "2")] {
            assert!(case(all, own).is_empty(), "{all} {own}");
        }
    }

    #[test]
    fn invisible_setting_is_not_a_finding() {
        assert!(bad(&[]).is_empty());
        let root = tree(&[]);
        assert!(readings_in(root.path())[0].to_string().ends_with("is not visible here"));
    }

    #[test]
    fn packaged_settings_are_good() {
        let packaged = packaged();
        let mut settings: Vec<_> =
            packaged.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        settings.push(("net.ipv4.conf.wwan0.rp_filter", "1"));
        settings.push(("net.ipv4.tcp_available_congestion_control", "reno cubic bbr"));
        let root = tree(&settings);
        let readings = readings_in(root.path());
        assert!(readings.iter().all(|reading| reading.good && reading.found.is_some()));
        assert_eq!(readings.len(), CHECKS.len());
    }
}
