//! One direction of a measurement: a flow that fills the carriers.

use std::time::{Duration, Instant};

use polyrail_daemon::speedtest::{Received, Reception, fill};
use polyrail_session::{Endpoint, FlowKey};

/// The receiver measures: the gateway a download, the cloud an upload.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) flow: FlowKey,
    pub(super) direction: Direction,
    /// How long it is measured.
    time: Duration,
    /// When it is given up.
    until: Instant,
}

#[derive(Debug)]
pub(super) enum Direction {
    Download(Download),
    /// The cloud's answer so far.
    Upload(Vec<u8>),
}

/// Received bytes of a download.
#[derive(Debug, Default)]
pub(super) struct Download {
    reception: Reception,
    /// When the latest bytes came.
    latest: Option<Instant>,
}

/// A rate in bit/s, and why it is incomplete.
pub(super) type Outcome = (Option<u64>, Option<String>);

impl Load {
    pub(super) fn new(now: Instant, flow: FlowKey, direction: Direction, time: Duration) -> Self {
        Self { flow, direction, time, until: now + time + ANSWER_WAIT }
    }

    /// Moves the bytes that can be moved.
    pub(super) fn advance(&mut self, now: Instant, endpoint: &mut Endpoint) {
        match &mut self.direction {
            Direction::Download(download) => {
                let count: usize = endpoint.readable(self.flow).iter().map(|part| part.len()).sum();
                endpoint.consume(now, self.flow, count);
                download.receive(now, count as u64);
            }
            Direction::Upload(answer) => {
                let bytes = endpoint.readable(self.flow).concat();
                endpoint.consume(now, self.flow, bytes.len());
                answer.extend(bytes.iter().take(Received::LINE_MAX - answer.len()));
                fill(now, endpoint, self.flow, u64::MAX);
            }
        }
    }

    /// The result once it is there. `ended` is set if the cloud has ended the flow.
    pub(super) fn outcome(&self, now: Instant, ended: Option<&str>) -> Option<Outcome> {
        let is_late = now >= self.until;
        match &self.direction {
            Direction::Download(download) => {
                let begun = download.reception.begun;
                let is_over = begun.is_some_and(|begun| now >= begun + self.time);
                (is_over || is_late || ended.is_some()).then(|| download.outcome(now, ended))
            }
            Direction::Upload(answer) => {
                let whole = answer.strip_suffix(b"\n").and_then(Received::parse);
                let reason = match (whole, ended) {
                    (Some(received), _) => {
                        let none = "the cloud received nothing".to_owned();
                        let rate = received.rate();
                        return Some((rate, rate.is_none().then_some(none)));
                    }
                    (None, Some(ended)) => format!("upload: {ended}"),
                    (None, None) if is_late => "upload: no answer; the path is dark".to_owned(),
                    (None, None) => return None,
                };
                Some((None, Some(reason)))
            }
        }
    }

    /// When [`Load::outcome`] may have changed without an event.
    pub(super) fn next_timeout(&self) -> Instant {
        match &self.direction {
            Direction::Download(download) => {
                download.reception.begun.map_or(self.until, |begun| begun + self.time)
            }
            Direction::Upload(_) => self.until,
        }
    }
}

impl Download {
    fn receive(&mut self, now: Instant, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.latest = Some(now);
        self.reception.add(now, bytes);
    }

    fn outcome(&self, now: Instant, ended: Option<&str>) -> Outcome {
        let reason = ended.unwrap_or("nothing arrived; the path is dark");
        let Some((received, latest)) = self.reception.received(now).zip(self.latest) else {
            return (None, Some(format!("download: {reason}")));
        };
        let dark = now.saturating_duration_since(latest);
        let error = match ended {
            Some(ended) => Some(format!("download: {ended}")),
            None if dark >= DARK_AFTER => {
                let dark = dark.as_secs_f64();
                Some(format!("download: nothing arrived in the last {dark:.1} s; the path is dark"))
            }
            None => None,
        };
        (received.rate(), error)
    }
}

/// How much longer than measured a direction may take.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// A path that delivers nothing for so long is dark.
const DARK_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_model::{FlowId, SessionKey};

    const SECONDS: Duration = Duration::from_secs(5);

    fn load(now: Instant, direction: Direction) -> Load {
        let flow = FlowKey { session: SessionKey(1), flow: FlowId(1) };
        Load::new(now, flow, direction, SECONDS)
    }

    #[test]
    fn download_is_measured_from_the_first_bytes_on() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let mut load = load(now, Direction::Download(Download::default()));
        assert_eq!((load.outcome(at(9_999), None), load.next_timeout()), (None, at(10_000)));
        let Direction::Download(download) = &mut load.direction else { panic!() };
        download.receive(at(300), 50_000);
        (1..=5).for_each(|second| download.receive(at(second * 1_000), 1_000_000));
        assert_eq!(load.next_timeout(), at(5_300));
        assert_eq!(load.outcome(at(5_299), None), None);
        assert_eq!(load.outcome(at(5_300), None), Some((Some(8_000_000), None)));
    }

    #[test]
    fn dark_path_is_stated() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let mut load = load(now, Direction::Download(Download::default()));
        let (rate, error) = load.outcome(at(10_000), None).unwrap();
        assert!(rate.is_none() && error.unwrap().contains("dark"));
        let Direction::Download(download) = &mut load.direction else { panic!() };
        download.receive(now, 1);
        download.receive(at(2_000), 1_000_000);
        let (rate, error) = load.outcome(at(5_000), None).unwrap();
        assert_eq!(rate, Some(1_600_000));
        assert!(error.unwrap().contains("in the last 3.0 s"));
        let (_, error) = load.outcome(at(2_100), Some("reset")).unwrap();
        assert_eq!(error.as_deref(), Some("download: reset"));
        let upload = self::load(now, Direction::Upload(Vec::new()));
        assert_eq!(upload.outcome(at(9_999), None), None);
        let (rate, error) = upload.outcome(at(10_000), None).unwrap();
        assert!(rate.is_none() && error.unwrap().contains("dark"));
    }

    #[test]
    fn upload_has_the_rate_that_the_cloud_received() {
        let now = Instant::now();
        let outcome = |answer: &[u8], ended| {
            load(now, Direction::Upload(answer.to_vec())).outcome(now, ended)
        };
        assert_eq!(outcome(b"1000000 1000000", None), None, "half an answer");
        assert_eq!(outcome(b"1000000 1000000\n", None), Some((Some(8_000_000), None)));
        assert_eq!(outcome(b"1000000 1000000\n", Some("closed")).unwrap().1, None);
        assert!(outcome(b"0 1000000\n", None).unwrap().1.is_some());
        assert_eq!(
            outcome(b"nonsense\n", Some("closed")),
            Some((None, Some("upload: closed".into())))
        );
    }
}
