//! Anonymous network namespaces for tests, demonstrations and the bench.
//!
//! A [`Namespace`] is held by a descriptor alone: it has no entry in `/run/netns` and no process of
//! its own, so the kernel frees it, with all its interfaces, when the holder and the processes
//! inside it are gone, even after SIGKILL. All of this needs root (`CAP_SYS_ADMIN`).
//!
//! ```no_run
//! # use polyrail_emulator::namespace::{Namespace, connect_veth};
//! # fn main() -> std::io::Result<()> {
//! let (gateway, server) = (Namespace::new()?, Namespace::new()?);
//! connect_veth((&gateway, "wan0"), (&server, "eth0"))?;
//! gateway.ip("address add 10.0.0.1/24 dev wan0")?;
//! gateway.ip("link set wan0 up")?;
//! let socket = gateway.run(|| std::net::UdpSocket::bind("10.0.0.1:0"))??;
//! let mut child = server.command("sleep").arg("10").spawn()?;
//! # child.kill()?; child.wait()?; drop(socket); Ok(()) }
//! ```
//!
//! Death of children: a command made here is killed with SIGKILL when the *thread* that spawned it
//! ends (that is how `PR_SET_PDEATHSIG` works), so spawn long-lived children from a thread that
//! lives as long as they should, never inside [`Namespace::run`].

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::Signal;

use crate::sys;

/// A network namespace, held open. Cheap to clone; the kernel frees it after the last clone.
#[derive(Clone, Debug)]
pub struct Namespace {
    fd: Arc<OwnedFd>,
}

impl Namespace {
    /// Makes a fresh namespace with `lo` up and nothing else in it.
    ///
    /// # Errors
    /// No privilege, or `ip` (package iproute2) is missing.
    pub fn new() -> io::Result<Self> {
        let namespace = on_helper_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Self::open("/proc/thread-self/ns/net")
        })??;
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Holds an existing namespace: `/proc/PID/ns/net`, `/run/netns/NAME` or `/proc/PID/fd/N`.
    ///
    /// # Errors
    /// The file cannot be opened. Whether it is a network namespace shows at first use.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self { fd: Arc::new(File::open(path)?.into()) })
    }

    /// Holds the namespace of the calling thread.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn current() -> io::Result<Self> {
        Self::open("/proc/thread-self/ns/net")
    }

    /// A path by which other processes can open this namespace for as long as this process holds
    /// it; `polyrail-emulator` takes it for `--near` and `--far`.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()).into()
    }

    /// Runs `work` on a thread of its own inside the namespace and returns its result. Sockets and
    /// files of `/proc/sys/net` opened there belong to the namespace for ever after.
    ///
    /// # Errors
    /// No privilege to enter.
    ///
    /// # Panics
    /// When `work` does.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_helper_thread(|| {
            setns(self.fd.as_ref(), CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        })?
    }

    /// A command that will run inside the namespace and die with the thread that spawns it.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.prepared(program.as_ref(), None)
    }

    /// As [`Namespace::command`], and in a mount namespace of its own the child sees the file
    /// `resolv_conf` as `/etc/resolv.conf`, which must exist as a file.
    ///
    /// # Errors
    /// The path has a zero byte in it.
    pub fn command_with_resolver(
        &self,
        program: impl AsRef<OsStr>,
        resolv_conf: &Path,
    ) -> io::Result<Command> {
        let file = CString::new(resolv_conf.as_os_str().as_bytes())?;
        Ok(self.prepared(program.as_ref(), Some(file)))
    }

    /// Runs `ip ARGUMENTS` inside the namespace; the arguments are split at white space.
    ///
    /// # Errors
    /// `ip` failed: the error has its words and the command.
    pub fn ip(&self, arguments: &str) -> io::Result<()> {
        self.tool("ip", arguments).map(|_| ())
    }

    /// Runs any tool inside the namespace to its end and returns its output; the arguments are
    /// split at white space.
    ///
    /// # Errors
    /// The tool is missing or failed: the error has its words and the command.
    pub fn tool(&self, program: &str, arguments: &str) -> io::Result<String> {
        let output = self
            .command(program)
            .args(arguments.split_whitespace())
            .stdin(Stdio::null())
            .output()
            .map_err(|e| io::Error::new(e.kind(), format!("`{program}` cannot be run: {e}")))?;
        checked(output, &format!("{program} {arguments}"))
    }

    /// Sets a sysctl of the namespace, such as `net.ipv4.ip_forward`.
    ///
    /// # Errors
    /// No such key, or the value is refused.
    pub fn sysctl(&self, key: &str, value: &str) -> io::Result<()> {
        let path = Path::new("/proc/sys").join(key.replace('.', "/"));
        self.run(|| std::fs::write(&path, value))?
            .map_err(|e| io::Error::new(e.kind(), format!("sysctl {key}={value}: {e}")))
    }

    fn prepared(&self, program: &OsStr, resolv_conf: Option<CString>) -> Command {
        let mut command = Command::new(program);
        let steps = sys::BeforeExec {
            namespace: Some(Arc::clone(&self.fd)),
            resolv_conf,
            on_parent_death: Some(Signal::SIGKILL),
        };
        sys::before_exec(&mut command, steps);
        command
    }
}

/// Joins two namespaces by a veth pair; the ends are left down and without addresses.
///
/// # Errors
/// No privilege, or a name is taken.
pub fn connect_veth(a: (&Namespace, &str), b: (&Namespace, &str)) -> io::Result<()> {
    let (here, far) = (a.1, b.1);
    let target = b.0.path();
    let arguments =
        format!("link add name {here} type veth peer name {far} netns {}", target.display());
    a.0.ip(&arguments)
}

/// Has a command (outside any namespace of ours) be killed when the thread that spawns it ends.
pub fn die_with_parent(command: &mut Command) {
    let on_parent_death = Some(Signal::SIGKILL);
    sys::before_exec(command, sys::BeforeExec { on_parent_death, ..Default::default() });
}

/// Runs `work` on a fresh thread, so that its changes of namespaces end with it.
fn on_helper_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let worker = std::thread::Builder::new().spawn_scoped(scope, work)?;
        worker.join().map_err(|panic| std::panic::resume_unwind(panic))
    })
}

fn checked(output: Output, what: &str) -> io::Result<String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("`{what}`: {}: {}", output.status, words.trim())))
}
