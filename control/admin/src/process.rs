//! Resource usage of this process.

use std::fs;

use nix::sys::resource::{RLIM_INFINITY, Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike;

use super::ProcessState;

/// The current resource usage.
pub(super) fn state() -> ProcessState {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok();
    let times = usage.map(|usage| (usage.user_time() + usage.system_time()).num_microseconds());
    let limit = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft);
    ProcessState {
        cpu_s: times.unwrap_or_default() as f64 / 1e6,
        descriptors_open: descriptors(),
        descriptors_max: limit.filter(|limit| *limit != RLIM_INFINITY),
        memory_resident_bytes: fs::read_to_string("/proc/self/status")
            .ok()
            .and_then(|status| resident(&status)),
    }
}

/// Open descriptors. Since Linux 6.2 the folder's size is their number (proc_pid_fd(5)). Before,
/// its entries are counted, which takes milliseconds with many flows.
fn descriptors() -> Option<u64> {
    let folder = "/proc/self/fd";
    let size = fs::metadata(folder).ok()?.len();
    // Reading the folder opens a descriptor, too.
    let counted = || Some((fs::read_dir(folder).ok()?.count() as u64).saturating_sub(1));
    if size > 0 { Some(size) } else { counted() }
}

/// The line `VmRSS:  1234 kB` of proc_pid_status(5), in bytes.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_files_are_parsed() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t    1234 kB\n"), Some(1234 * 1024));
        assert_eq!(resident("Name:\tx\n"), None);
        let now = state();
        assert!(now.memory_resident_bytes > Some(100_000), "{now:?}");
        assert!(now.descriptors_open > Some(2) && now.descriptors_open < now.descriptors_max);
    }
}
