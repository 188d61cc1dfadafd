//! The daemon's messages to its service manager, as `sd_notify(3)` describes them: ready, alive,
//! stopping.
//!
//! systemd passes the address of a Unix datagram socket in `NOTIFY_SOCKET`, and the watchdog's
//! timeout in `WATCHDOG_USEC`. The data plane's loop sends the keep-alives, so a loop that blocks
//! or spins ends the process. Without a service manager nothing is sent.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// The service manager.
#[derive(Debug, Default)]
pub struct Supervisor {
    socket: Option<UnixDatagram>,
    /// The interval of keep-alives, if there is a watchdog.
    every: Option<Duration>,
    /// When the next keep-alive is due; `None` before the daemon is ready.
    due: Option<Instant>,
    /// A part of the daemon does not answer: no keep-alive is sent.
    is_withheld: bool,
}

impl Supervisor {
    /// The service manager that the environment names. An unusable socket is logged; systemd then
    /// ends the start after its own timeout.
    pub fn from_environment() -> Self {
        let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return Self::default() };
        let own = std::process::id().to_string();
        let is_ours = std::env::var_os("WATCHDOG_PID").is_none_or(|pid| pid == own.as_str());
        let timeout = std::env::var("WATCHDOG_USEC").ok().filter(|_| is_ours);
        let timeout = timeout.and_then(|text| text.parse().ok()).map(Duration::from_micros);
        Self::at(&address, timeout).unwrap_or_else(|error| {
            tracing::warn!(?address, %error, "cannot reach the service manager");
            Self::default()
        })
    }

    /// The service manager at `address`, whose watchdog has this timeout.
    fn at(address: &OsStr, timeout: Option<Duration>) -> io::Result<Self> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(address)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_nonblocking(true)?;
        let every = timeout.map(|timeout| timeout / KEEP_ALIVES_PER_TIMEOUT);
        Ok(Self {
            socket: Some(socket),
            every: every.filter(|every| !every.is_zero()),
            due: None,
            is_withheld: false,
        })
    }

    /// The daemon has started; the data plane's loop runs from now on.
    pub fn ready(&mut self, now: Instant) {
        self.send("READY=1");
        self.due = self.every.map(|every| now + every);
    }

    /// The daemon shuts down.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Withholds keep-alives, or sends them again.
    pub fn withhold(&mut self, is_withheld: bool) {
        self.is_withheld = is_withheld;
    }

    /// Sends a keep-alive if one is due.
    pub fn on_turn(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            if !self.is_withheld {
                self.send("WATCHDOG=1");
            }
            self.due = self.every.map(|every| now + every);
        }
    }

    /// When [`Supervisor::on_turn`] is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Best effort: the manager repeats nothing, and a full socket must not block the loop.
    fn send(&self, message: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(message.as_bytes())
        {
            tracing::debug!(message, %error, "message to the service manager lost");
        }
    }
}

/// Half the timeout is usual (`sd_watchdog_enabled(3)`); a third survives a lost message.
const KEEP_ALIVES_PER_TIMEOUT: u32 = 3;

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn manager_hears_of_start_life_and_stop() {
        let name = format!("polyrail-supervisor-{}", std::process::id());
        let manager = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&manager).unwrap();
        manager.set_nonblocking(true).unwrap();
        let heard = || {
            let mut message = [0; 64];
            let length = manager.recv(&mut message).unwrap_or_default();
            String::from_utf8_lossy(&message[..length]).into_owned()
        };
        let (begin, timeout) = (Instant::now(), Duration::from_secs(9));
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut daemon =
            Supervisor::at(&OsString::from(format!("@{name}")), Some(timeout)).unwrap();
        daemon.on_turn(at(100));
        assert_eq!((heard().as_str(), daemon.next_timeout()), ("", None), "not ready yet");
        daemon.ready(at(0));
        assert_eq!((heard().as_str(), daemon.next_timeout()), ("READY=1", Some(at(3))));
        daemon.on_turn(at(2));
        assert_eq!(heard(), "");
        daemon.on_turn(at(4));
        assert_eq!((heard().as_str(), daemon.next_timeout()), ("WATCHDOG=1", Some(at(7))));
        daemon.withhold(true);
        daemon.on_turn(at(7));
        assert_eq!((heard().as_str(), daemon.next_timeout()), ("", Some(at(10))), "withheld");
        daemon.withhold(false);
        daemon.on_turn(at(10));
        assert_eq!(heard(), "WATCHDOG=1");
        daemon.stopping();
        assert_eq!(heard(), "STOPPING=1");
    }

    #[test]
    fn daemon_runs_without_a_manager() {
        let mut alone = Supervisor::default();
        alone.ready(Instant::now());
        assert_eq!(alone.next_timeout(), None);
        assert!(Supervisor::at(OsStr::new("/nonexistent/notify"), None).is_err());
    }
}
