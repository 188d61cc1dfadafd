//! Checks whether a congestion control is available, before a tunnel uses it, so that the answer to
//! a reload can warn the operator.

use std::io;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// The congestion controls of QUIC.
pub const QUIC: [&str; 4] = ["rail", "bbr", "cubic", "reno"];

/// Checks that QUIC has `name`, the value of `key`.
///
/// # Errors
/// A warning that `instead` is used.
pub fn quic_has(key: &str, name: &str, instead: &str) -> Result<(), String> {
    if QUIC.contains(&name) {
        return Ok(());
    }
    Err(format!(
        "{key}: QUIC has no congestion control {name}, only {}; {instead} is taken there",
        QUIC.join(", ")
    ))
}

/// Checks that the kernel has `name`, the value of `key`, and permits this process to use it.
///
/// # Errors
/// A warning that `instead` is used, with the remedy.
pub fn kernel_has(key: &str, name: &str, instead: &str) -> Result<(), String> {
    let name = polyrail_tunnel::kernel_control(name);
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
