//! The few system calls without a safe wrapper: TUN devices, a child process between `fork` and
//! `exec`, priority, and `TCP_INFO`.
//!
//! All of the crate's `unsafe` is here.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::Signal;

nix::ioctl_write_int!(tun_set_iff, b'T', 202);

/// Opens a new TUN device called `name` in the network namespace of the calling thread.
///
/// Each read takes one IP packet and each write gives one; neither blocks. The device vanishes when
/// the file is closed.
///
/// # Errors
/// What the kernel says: no `/dev/net/tun`, no privilege, or the name is taken.
pub(crate) fn open_tun(name: &str) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "interface name too long"));
    }
    // SAFETY: `ifreq` is plain data of which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the descriptor is open, and the kernel reads one `ifreq` at the address given, which
    // lives until the call returns.
    unsafe { tun_set_iff(file.as_raw_fd(), (&raw const request) as libc::c_ulong) }?;
    Ok(file)
}

/// The actions of a child before its program starts.
#[derive(Default)]
pub(crate) struct BeforeExec {
    /// Joins this network namespace.
    pub(crate) namespace: Option<Arc<OwnedFd>>,
    /// Sees this file as `/etc/resolv.conf`.
    pub(crate) resolv_conf: Option<CString>,
    /// Gets this signal when the thread that spawned it ends.
    pub(crate) on_parent_death: Option<Signal>,
}

/// Adds these actions to a command.
pub(crate) fn before_exec(command: &mut Command, steps: BeforeExec) {
    let parent = nix::unistd::getpid();
    // SAFETY: the closure makes system calls only. It allocates nothing and takes no lock, so it is
    // sound between `fork` and `exec` in a process with threads. The descriptor is kept open by the
    // `Arc` that the closure owns.
    unsafe {
        command.pre_exec(move || {
            if let Some(signal) = steps.on_parent_death {
                nix::sys::prctl::set_pdeathsig(signal)?;
                if nix::unistd::getppid() != parent {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
            }
            if let Some(namespace) = &steps.namespace {
                setns(namespace.as_ref(), CloneFlags::CLONE_NEWNET)?;
            }
            if let Some(file) = &steps.resolv_conf {
                let none = None::<&std::ffi::CStr>;
                unshare(CloneFlags::CLONE_NEWNS)?;
                mount(none, c"/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
                let target = c"/etc/resolv.conf";
                mount(Some(file.as_c_str()), target, none, MsFlags::MS_BIND, none)?;
            }
            Ok(())
        });
    }
}

/// Gives the calling thread the lowest real-time priority, so that it runs as soon as it is ready.
///
/// # Errors
/// No privilege.
pub(crate) fn run_in_real_time() -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the kernel reads one `sched_param` at the address given, which lives until the call
    // returns; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The kernel's `struct tcp_info` of a socket, as much of it as the kernel has.
///
/// # Errors
/// It is no TCP socket.
pub(crate) fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0_u8; 512];
    let mut length = buffer.len() as libc::socklen_t;
    // SAFETY: the pointers are to live local variables, `length` says how large the buffer is, the
    // kernel writes at most that much, and any bytes are valid in a vector of bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            buffer.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    buffer.truncate(length as usize);
    Ok(buffer)
}
