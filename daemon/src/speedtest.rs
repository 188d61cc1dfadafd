//! The flows of a speed test, as `docs/protocol.md` describes them: the name that they go to, and
//! the request that each of them begins with.
//!
//! A gateway opens the flows, and its cloud serves them from memory. The name is never resolved,
//! and nothing is dialled.

use std::time::Instant;

use polyrail_model::{Destination, HostName};
use polyrail_session::{Endpoint, FlowKey};

/// The host name of speed tests. RFC 2606 reserves `.invalid`: no server has the name.
pub const HOST: &str = "speedtest.polyrail.invalid";

/// The user of a speed test's flows. All flows of a test together have one user's share.
pub use polyrail_session::limits::TEST_USER as USER;

/// The longest direction of a test, in seconds.
pub const SECONDS_MAX: u64 = polyrail_admin::SPEEDTEST_S_MAX;

/// The maximum length of a request, in bytes: 64 carriers with their commas.
pub const REQUEST_MAX: usize = 64 * 33 + 32;

/// The destination of a speed test's flows.
///
/// # Panics
/// Never: [`HOST`] is a host name.
pub fn destination() -> Destination {
    Destination::Name(HostName::new(HOST).expect("a host name"), PORT)
}

/// Whether a flow goes to the name of speed tests.
pub fn is_destination(destination: &Destination) -> bool {
    matches!(destination, Destination::Name(name, _) if name.as_str().eq_ignore_ascii_case(HOST))
}

/// The service of the cloud to a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Returns received bytes.
    Echo,
    /// Sends.
    Source,
    /// Discards received bytes, and then reports their number.
    Sink,
}

/// The first line of a flow, from the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The service.
    pub service: Service,
    /// For how long: 1 to [`SECONDS_MAX`].
    pub seconds: u64,
    /// The carriers over which the cloud sends.
    pub carriers: Vec<String>,
}

impl Request {
    /// The line, with its end.
    pub fn line(&self) -> String {
        let service = match self.service {
            Service::Echo => "echo",
            Service::Source => "source",
            Service::Sink => "sink",
        };
        format!("{service} {} {}\n", self.seconds, self.carriers.join(","))
    }

    /// Reads a line without its end; `None` if it is invalid.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(line).ok()?.split(' ');
        let service = match words.next()? {
            "echo" => Service::Echo,
            "source" => Service::Source,
            "sink" => Service::Sink,
            _ => return None,
        };
        let seconds = words.next()?.parse().ok().filter(|s| (1..=SECONDS_MAX).contains(s))?;
        let carriers = words.next()?.split(',').map(str::to_owned).collect();
        words.next().is_none().then_some(Self { service, seconds, carriers })
    }
}

/// The bytes that a sink received: the answer of the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes after the first ones.
    pub bytes: u64,
    /// The time since the first ones, in microseconds.
    pub time_us: u64,
}

impl Received {
    /// The maximum length of the line, in bytes.
    pub const LINE_MAX: usize = 64;

    /// The line, with its end.
    pub fn line(self) -> String {
        format!("{} {}\n", self.bytes, self.time_us)
    }

    /// Reads a line without its end; `None` if it is invalid.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let (bytes, time_us) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        Some(Self { bytes: bytes.parse().ok()?, time_us: time_us.parse().ok()? })
    }

    /// The rate in bit/s; `None` if nothing or everything came at once.
    pub fn rate(self) -> Option<u64> {
        let bits = u128::from(self.bytes) * 8 * 1_000_000;
        u64::try_from(bits.checked_div(self.time_us.into())?).ok().filter(|rate| *rate > 0)
    }
}

/// Bytes that arrive on a flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reception {
    /// When the first bytes came; they begin the measurement and do not count.
    pub begun: Option<Instant>,
    /// The bytes after them.
    pub bytes: u64,
}

impl Reception {
    /// Bytes came, or none.
    pub fn add(&mut self, now: Instant, bytes: u64) {
        match self.begun {
            None => self.begun = (bytes > 0).then_some(now),
            Some(_) => self.bytes += bytes,
        }
    }

    /// What came until now; none before the first bytes.
    pub fn received(&self, now: Instant) -> Option<Received> {
        let time = now.saturating_duration_since(self.begun?);
        let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Some(Received { bytes: self.bytes, time_us })
    }
}

/// Sends as many bytes as the flow takes, at most `most`; returns how many.
pub fn fill(now: Instant, endpoint: &mut Endpoint, flow: FlowKey, most: u64) -> u64 {
    let mut left = most;
    for _ in 0..CHUNKS_MAX {
        let chunk = CHUNK.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let taken = endpoint.write(now, flow, &CHUNK[..chunk]);
        left -= taken as u64;
        if taken < chunk || left == 0 {
            break;
        }
    }
    most - left
}

/// The bytes of a test. Tunnels encrypt them, so that no carrier compresses them.
static CHUNK: [u8; 64 * 1024] = [0; 64 * 1024];
/// A bound of one call: a flow that is over takes any number of bytes.
const CHUNKS_MAX: usize = 1_024;
/// Without meaning; a destination has one.
const PORT: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip_and_invalid_ones_are_refused() {
        let carriers = vec!["lte-a".to_owned(), "sat_1".to_owned()];
        for service in [Service::Echo, Service::Source, Service::Sink] {
            let request = Request { service, seconds: 30, carriers: carriers.clone() };
            let line = request.line();
            assert_eq!(Request::parse(line.trim_end().as_bytes()), Some(request));
        }
        for bad in [
            "",
            "echo",
            "echo 5",
            "echo 0 a",
            "echo 31 a",
            "echo -1 a",
            "echo 5 a b",
            "dial 5 a",
            "echo 99999999999999999999 a",
            "echo 5 \u{e9} ",
            "ECHO 5 a",
        ] {
            assert_eq!(Request::parse(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(Request::parse(b"echo 5 \xff"), None);
        let names = (0..64).map(|number| format!("{number:032}")).collect();
        let longest = Request { service: Service::Source, seconds: 30, carriers: names };
        assert!(longest.line().len() <= REQUEST_MAX);
    }

    #[test]
    fn received_bytes_have_a_rate() {
        let received = Received { bytes: 12_500_000, time_us: 5_000_000 };
        assert_eq!(Received::parse(received.line().trim_end().as_bytes()), Some(received));
        assert_eq!(received.rate(), Some(20_000_000));
        assert_eq!(Received { bytes: 0, ..received }.rate(), None);
        assert_eq!(Received { time_us: 0, ..received }.rate(), None);
        assert_eq!(Received { bytes: u64::MAX, time_us: 1 }.rate(), None);
        let most = Received { bytes: u64::MAX, time_us: u64::MAX };
        assert!(most.line().len() <= Received::LINE_MAX);
        for bad in ["", "1", "1 2 3", "-1 2", "1 x"] {
            assert_eq!(Received::parse(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn only_the_reserved_name_is_that_of_speed_tests() {
        assert!(is_destination(&destination()));
        let named = |name| Destination::Name(HostName::new(name).unwrap(), 443);
        assert!(is_destination(&named("SpeedTest.Polyrail.INVALID.")));
        assert!(!is_destination(&named("polyrail.invalid")));
        assert!(!is_destination(&Destination::Address(([192, 0, 2, 1], 1).into())));
    }
}
