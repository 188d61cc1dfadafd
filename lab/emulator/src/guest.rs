//! A guest: Debian's cloud kernel in `qemu-system-x86_64`, for tests that the host's kernel cannot
//! run because it lacks netem or because its clock must not step.
//!
//! `make setup` installs QEMU and fetches the kernel. The guest has no disk and no network. Its
//! root is an initramfs with busybox, kernel modules, and programs of the host with their shared
//! libraries, all at the paths that they have on the host. Inside, [`is_inside`] is true.
//!
//! QEMU interprets the guest (TCG) because KVM is missing or hangs on many machines. The guest's
//! clock counts instructions and skips idle time (`-icount` with `sleep=off`), so a busy host
//! slows a test down but changes no time that the test measures.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Error, Read, Result, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::namespace::die_with_parent;

const QEMU: &str = "/usr/bin/qemu-system-x86_64";
const BUSYBOX: &str = "/bin/busybox";

/// Kernel modules that every guest loads. None depends on another one.
const MODULES: [&str; 5] = ["veth", "tun", "sch_netem", "sch_fq", "tcp_bbr"];

/// Folders and files of the host that each guest has.
const FIXTURES: [&str; 10] = [
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/tmp",
    "/mnt",
    "/etc/passwd",
    "/etc/group",
    "/etc/hosts",
    "/etc/resolv.conf",
];

/// Marks the guest's kernel in its arguments; no host has it.
const INSIDE: &str = "polyrail.guest";

/// The line that a guest prints when its command has succeeded.
const SUCCESS: &str = "GUEST ended with 0";

/// `reboot=t` and `panic=-1`: a panic ends QEMU at once (with `-no-reboot`). `tsc=reliable`: no
/// watchdog, whose reference has a resolution of 4 ms.
const KERNEL_ARGUMENTS: &str =
    "console=ttyS0 quiet panic=-1 reboot=t tsc=reliable mitigations=off polyrail.guest";

/// An instruction takes 2 ns of the guest's time, and idle time is skipped.
const CLOCK: &str = "shift=1,sleep=off";

/// A timer that the kernel trusts at idle (ARAT; without it, it sleeps in steps of 4 ms), random
/// numbers, and AES. No AVX and no `rep movsb` for copies (ERMS), which QEMU interprets slowly.
const PROCESSOR: &str = "qemu64,+arat,+rdrand,+ssse3,+sse4.1,+sse4.2,+popcnt,+aes,+pclmulqdq";

/// True in a program that runs inside a guest.
pub fn is_inside() -> bool {
    std::fs::read_to_string("/proc/cmdline").is_ok_and(|line| line.contains(INSIDE))
}

/// True when `make setup` has installed QEMU, busybox and the kernel.
pub fn is_installed() -> bool {
    [Path::new(QEMU), Path::new(BUSYBOX), &kernel("vmlinuz")].iter().all(|file| file.exists())
}

/// Boots a guest that runs one test of the calling test program, and returns its console. The guest
/// also has `programs` of the host.
///
/// # Errors
/// As [`run`].
pub fn run_test(name: &str, programs: &[PathBuf], limit: Duration) -> Result<String> {
    let own = std::env::current_exe()?;
    let command = [&own.to_string_lossy(), "--exact", name, "--nocapture"].map(str::to_owned);
    let console = run(&command, &[programs, std::slice::from_ref(&own)].concat(), limit)?;
    if console.contains("test result: ok. 1 passed") {
        return Ok(console);
    }
    Err(Error::other(format!("the guest ran no test {name}:\n{console}")))
}

/// Boots a guest that has `programs` of the host, runs a command in it, and returns its console.
///
/// # Errors
/// The command failed, the guest died, or `limit` (of the host's time) passed; with the console.
pub fn run(command: &[String], programs: &[PathBuf], limit: Duration) -> Result<String> {
    let initramfs = initramfs(command, programs)?;
    let mut console = in_memory()?;
    let mut qemu = Command::new(QEMU);
    qemu.args(["-accel", "tcg", "-machine", "microvm", "-cpu", PROCESSOR, "-m", "1G"])
        .args(["-icount", CLOCK])
        .args(["-no-reboot", "-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-serial", "stdio", "-append", KERNEL_ARGUMENTS])
        .arg("-kernel")
        .arg(kernel("vmlinuz"))
        .arg("-initrd")
        .arg(format!("/proc/{}/fd/{}", std::process::id(), initramfs.as_raw_fd()))
        .stdin(Stdio::null())
        .stdout(console.try_clone()?)
        .stderr(console.try_clone()?);
    die_with_parent(&mut qemu);
    let (mut qemu, started) = (qemu.spawn()?, Instant::now());
    while qemu.try_wait()?.is_none() && started.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(50));
    }
    // Fails if it has ended.
    let _ = qemu.kill();
    qemu.wait()?;
    let mut said = Vec::new();
    console.rewind()?;
    console.read_to_end(&mut said)?;
    let said = String::from_utf8_lossy(&said).replace('\r', "");
    if said.lines().any(|line| line == SUCCESS) {
        return Ok(said);
    }
    let took = started.elapsed();
    Err(Error::other(format!("the guest failed after {took:.0?} of {limit:?}:\n{said}")))
}

/// The archive that the kernel unpacks as its root: its first program, then files of the host.
fn initramfs(command: &[String], programs: &[PathBuf]) -> Result<File> {
    let mut archive = in_memory()?;
    archive.write_all(&first_program(command))?;
    let mut files = BTreeSet::from(FIXTURES.map(PathBuf::from));
    files.extend(MODULES.map(|module| kernel(&format!("{module}.ko"))));
    files.extend(shared_libraries(programs)?);
    files.extend(programs.iter().cloned().chain([BUSYBOX.into()]));
    let folders = files.iter().flat_map(|file| file.ancestors());
    let names: BTreeSet<&Path> = folders.filter(|path| *path != Path::new("/")).collect();
    let mut cpio = Command::new(BUSYBOX)
        .args(["cpio", "--quiet", "-o", "-L", "-H", "newc"])
        .stdin(Stdio::piped())
        .stdout(archive.try_clone()?)
        .spawn()?;
    let mut list = cpio.stdin.take().expect("it is piped");
    // A folder is less than the files in it.
    names.iter().try_for_each(|name| writeln!(list, "{}", name.display()))?;
    drop(list);
    let status = cpio.wait()?;
    if status.success() { Ok(archive) } else { Err(Error::other(format!("cpio: {status}"))) }
}

/// The script `/init` as an entry of an archive (format "newc" of the kernel's
/// `Documentation/driver-api/early-userspace/buffer-format.rst`). The script calls busybox only by
/// its path, so that `ip` means the host's program. It exports the `POLYRAIL_` variables of this
/// process.
fn first_program(command: &[String]) -> Vec<u8> {
    let quoted: String = command.iter().map(|word| format!("'{word}' ")).collect();
    let variables = std::env::vars().filter(|(name, _)| name.starts_with("POLYRAIL_"));
    let variables: String = variables.map(|(name, value)| format!("{name}='{value}' ")).collect();
    let modules = MODULES.map(|module| kernel(&format!("{module}.ko")).display().to_string());
    let script = format!(
        "#!{BUSYBOX} sh\n\
         {BUSYBOX} mount -t proc proc /proc\n\
         {BUSYBOX} mount -t sysfs sysfs /sys\n\
         {BUSYBOX} mount -t devtmpfs dev /dev\n\
         for module in {}; do {BUSYBOX} insmod $module; done\n\
         export PATH=/usr/sbin:/usr/bin HOME=/tmp {variables}\n\
         {quoted}2>&1\n\
         printf '\\nGUEST ended with %d\\n' $?\n\
         {BUSYBOX} reboot -f\n",
        modules.join(" ")
    );
    // Inode, mode, owner, group, links, time, length, four device numbers, name, checksum.
    let fields = [0, 0o100_755, 0, 0, 1, 0, script.len(), 0, 0, 0, 0, "/init\0".len(), 0];
    let fields: String = fields.iter().map(|field| format!("{field:08X}")).collect();
    let mut entry = format!("070701{fields}/init\0{script}").into_bytes();
    entry.resize(entry.len().next_multiple_of(4), 0);
    entry
}

/// The shared libraries of programs, and their loader.
fn shared_libraries(programs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").args(programs).output()?;
    let listed = String::from_utf8_lossy(&output.stdout);
    // `NAME => FILE (ADDRESS)`, or `FILE (ADDRESS)`; the programs' own lines are not indented.
    let libraries = listed.lines().filter(|line| line.starts_with('\t'));
    let files = libraries.flat_map(str::split_whitespace).filter(|word| word.starts_with('/'));
    Ok(files.map(PathBuf::from).collect())
}

/// A file of the kernel, as `scripts/setup.sh` unpacks it.
fn kernel(file: &str) -> PathBuf {
    std::env::home_dir().unwrap_or_default().join(".cache/polyrail/guest").join(file)
}

/// A file without a name: nothing is left of it, however this process ends.
fn in_memory() -> Result<File> {
    Ok(File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC)?))
}
