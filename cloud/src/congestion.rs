//! The congestion control of the tunnels towards gateways.
//!
//! Most bytes flow this way, over radio links that lose packets at random: bbr is taken wherever
//! the kernel lets us, and its default otherwise, with a warning that names the remedy. (The
//! gateway's own direction is configured for each carrier.)

use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// The kernel's name of the congestion control to use; `None` is the kernel's default.
pub(crate) fn choose() -> Option<String> {
    match try_on_a_socket(WANTED) {
        Ok(()) => Some(WANTED.to_owned()),
        Err(error) => {
            tracing::warn!(
                "congestion control {WANTED} cannot be used ({error}): downloads slow down at \
                 every random loss. Remedy: modprobe tcp_{WANTED}, and list it in \
                 net.ipv4.tcp_allowed_congestion_control"
            );
            None
        }
    }
}

fn try_on_a_socket(name: &str) -> std::io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    SockRef::from(&socket).set_tcp_congestion(name.as_bytes())
}

const WANTED: &str = "bbr";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_has_is_taken_and_what_it_lacks_is_an_error() {
        // reno is built into every kernel and allowed to everybody.
        assert!(try_on_a_socket("reno").is_ok());
        assert!(try_on_a_socket("no-such-control").is_err());
    }
}
