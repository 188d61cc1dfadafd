//! The stream of events: a bounded memory of the latest, and readers who follow it.
//!
//! A reader holds a place in the memory and nothing else, so that any number of slow ones cost
//! nothing. One who is so slow that its place is forgotten is told so and cut off.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use serde_json::json;
use tokio::sync::watch;

use super::{Event, Record, Timestamp};

/// The latest events; all its clones are one.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    ring: Arc<Mutex<Ring>>,
    newest: watch::Sender<u64>,
}

/// Events that are remembered.
pub(super) const EVENTS_MAX: usize = 1024;
/// Bytes of their lines that are remembered.
const BYTES_MAX: usize = 1024 * 1024;
/// Bytes of lines that a reader is given at once, beside the first.
const CHUNK: usize = 16 * 1024;

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<Bytes>,
    /// The number of the first line, counted from 0.
    forgotten: u64,
    bytes: usize,
}

/// A reader's place in the stream.
#[derive(Debug)]
pub(super) struct Reader {
    stream: Stream,
    newest: watch::Receiver<u64>,
    /// The number of the last event it was given.
    seen: u64,
    follow: bool,
    over: bool,
}

impl Stream {
    pub(super) fn new() -> Self {
        Self { ring: Arc::default(), newest: watch::Sender::new(0) }
    }

    /// Adds an event and wakes the readers who wait.
    pub(super) fn push(&self, at: Timestamp, event: Event) {
        let mut ring = self.ring();
        let seq = ring.newest() + 1;
        let Ok(mut line) = serde_json::to_vec(&Record { seq, at, event }) else { return };
        line.push(b'\n');
        ring.bytes += line.len();
        ring.lines.push_back(line.into());
        while ring.lines.len() > EVENTS_MAX || (ring.bytes > BYTES_MAX && ring.lines.len() > 1) {
            let gone = ring.lines.pop_front().map_or(0, |line| line.len());
            ring.bytes -= gone;
            ring.forgotten += 1;
        }
        drop(ring);
        self.newest.send_replace(seq);
    }

    /// A reader of all that is remembered behind event `seen`, who then waits for more if it
    /// wants to `follow`.
    pub(super) fn read(&self, seen: u64, follow: bool) -> Reader {
        let ring = self.ring();
        // A number from before a restart of the daemon says nothing here.
        let seen = if seen > ring.newest() { 0 } else { seen };
        let seen = seen.max(ring.forgotten);
        drop(ring);
        let newest = self.newest.subscribe();
        Reader { stream: self.clone(), newest, seen, follow, over: false }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn newest(&self) -> u64 {
        self.forgotten + self.lines.len() as u64
    }
}

impl Reader {
    /// Some lines more, once there are any; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.over {
                return None;
            }
            self.newest.mark_unchanged();
            if let Some(lines) = self.take() {
                return Some(lines);
            }
            if !self.follow || self.newest.changed().await.is_err() {
                return None;
            }
        }
    }

    fn take(&mut self) -> Option<Bytes> {
        let ring = self.stream.ring();
        if self.seen < ring.forgotten {
            self.over = true;
            let missed = ring.forgotten - self.seen;
            let message = "this reader is too slow: events it has not read are forgotten";
            let notice = json!({"event": "cut_off", "missed": missed, "message": message});
            return Some(format!("{notice}\n").into());
        }
        let from = usize::try_from(self.seen - ring.forgotten).unwrap_or(usize::MAX);
        let mut lines = Vec::new();
        for line in ring.lines.iter().skip(from) {
            if !lines.is_empty() && lines.len() + line.len() > CHUNK {
                break;
            }
            lines.extend_from_slice(line);
            self.seen += 1;
        }
        Some(lines).filter(|lines| !lines.is_empty()).map(Bytes::from)
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    fn alarm(stream: &Stream, message: &str) {
        let event = Event::Alarm { message: message.to_owned(), path: None };
        stream.push(Timestamp::now(), event);
    }

    fn seqs(chunk: &Bytes) -> Vec<u64> {
        let text = std::str::from_utf8(chunk).unwrap();
        let record = |line: &str| serde_json::from_str::<Record>(line).unwrap().seq;
        text.lines().map(record).collect()
    }

    /// What the reader is given now; `None` when it waits.
    fn now(reader: &mut Reader) -> Option<Option<Bytes>> {
        match task::spawn(reader.next()).poll() {
            std::task::Poll::Ready(chunk) => Some(chunk),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn a_late_reader_is_given_the_latest_and_then_what_comes() {
        let stream = Stream::new();
        for n in 0..EVENTS_MAX + 3 {
            alarm(&stream, &n.to_string());
        }
        let mut reader = stream.read(0, false);
        let mut all = Vec::new();
        while let Some(Some(chunk)) = now(&mut reader) {
            assert!(chunk.len() <= CHUNK);
            all.extend(seqs(&chunk));
        }
        assert_eq!(all, (4..=EVENTS_MAX as u64 + 3).collect::<Vec<_>>());

        let mut reader = stream.read(EVENTS_MAX as u64 + 2, true);
        assert_eq!(seqs(&now(&mut reader).unwrap().unwrap()), [EVENTS_MAX as u64 + 3]);
        let mut waiting = task::spawn(reader.next());
        assert_pending!(waiting.poll());
        alarm(&stream, "more");
        assert!(waiting.is_woken());
        let chunk = assert_ready!(waiting.poll()).unwrap();
        assert_eq!(seqs(&chunk), [EVENTS_MAX as u64 + 4]);
    }

    #[test]
    fn a_slow_reader_is_told_and_cut_off() {
        let stream = Stream::new();
        alarm(&stream, "first");
        let mut slow = stream.read(0, true);
        for n in 0..EVENTS_MAX + 2 {
            alarm(&stream, &n.to_string());
        }
        let notice = now(&mut slow).unwrap().unwrap();
        let notice: serde_json::Value = serde_json::from_slice(&notice).unwrap();
        assert_eq!((&notice["event"], &notice["missed"]), (&"cut_off".into(), &3.into()));
        assert_eq!(now(&mut slow), Some(None));
    }

    #[test]
    fn large_events_are_forgotten_sooner() {
        let stream = Stream::new();
        for _ in 0..40 {
            alarm(&stream, &"x".repeat(BYTES_MAX / 20));
        }
        let ring = stream.ring();
        assert!(ring.bytes <= BYTES_MAX && ring.lines.len() < 20, "{}", ring.lines.len());
        assert_eq!(ring.newest(), 40);
    }

    #[test]
    fn a_number_from_before_a_restart_hides_nothing() {
        let stream = Stream::new();
        alarm(&stream, "only");
        assert_eq!(seqs(&now(&mut stream.read(99, false)).unwrap().unwrap()), [1]);
    }
}
