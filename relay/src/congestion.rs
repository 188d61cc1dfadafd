//! Whether a congestion control can be had here, asked before a tunnel wants it: so an operator
//! hears of it in the answer to a reload. Nothing is chosen here.

use std::io;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// What QUIC has.
pub const QUIC: [&str; 3] = ["bbr", "cubic", "reno"];

/// Whether QUIC has `name`, which stands under `key`.
///
/// # Errors
/// It has not: a warning, which says that `instead` is taken.
pub fn quic_has(key: &str, name: &str, instead: &str) -> Result<(), String> {
    if QUIC.contains(&name) {
        return Ok(());
    }
    Err(format!(
        "{key}: QUIC has no congestion control {name}, only {}; {instead} is taken there",
        QUIC.join(", ")
    ))
}

/// Whether the kernel has `name`, which stands under `key`, and lets this process use it.
///
/// # Errors
/// It cannot be used: a warning, which says that `instead` is taken, and what would help.
pub fn kernel_has(key: &str, name: &str, instead: &str) -> Result<(), String> {
    try_on_a_socket(name).map_err(|error| {
        format!(
            "{key}: congestion control {name} cannot be used ({error}); {instead} is taken, and \
             transfers may slow down at every random loss. Remedy: modprobe tcp_{name}, list it \
             in net.ipv4.tcp_allowed_congestion_control, restart"
        )
    })
}

fn try_on_a_socket(name: &str) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    SockRef::from(&socket).set_tcp_congestion(name.as_bytes())
}
