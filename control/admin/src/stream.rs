//! The stream of events: a bounded buffer of the latest events, and its readers.
//!
//! A reader holds only a position in the buffer, so slow readers cost nothing. A reader whose
//! position was evicted receives a notice and is disconnected.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use serde_json::json;
use tokio::sync::watch;

use super::{AdminEvent, EventRecord, Timestamp};

/// The latest events; clones share them.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    ring: Arc<Mutex<Ring>>,
    newest: watch::Sender<u64>,
}

/// The maximum number of buffered events.
pub(super) const EVENTS_MAX: usize = 1024;
/// The maximum number of buffered bytes.
const BYTES_MAX: usize = 1024 * 1024;
/// The maximum number of bytes per read, if there is more than one line.
const CHUNK: usize = 16 * 1024;

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<Bytes>,
    /// The number of evicted lines.
    evicted: u64,
    bytes: usize,
}

/// A reader's position in the stream.
#[derive(Debug)]
pub(super) struct Reader {
    stream: Stream,
    newest: watch::Receiver<u64>,
    /// The number of the last event that was read.
    seen: u64,
    follow: bool,
    over: bool,
}

impl Stream {
    pub(super) fn new() -> Self {
        Self { ring: Arc::default(), newest: watch::Sender::new(0) }
    }

    /// Adds an event and wakes waiting readers.
    pub(super) fn push(&self, at: Timestamp, event: AdminEvent) {
        let mut ring = self.ring();
        let seq = ring.newest() + 1;
        let Ok(mut line) = serde_json::to_vec(&EventRecord { seq, at, event }) else { return };
        line.push(b'\n');
        ring.bytes += line.len();
        ring.lines.push_back(line.into());
        while ring.lines.len() > EVENTS_MAX || (ring.bytes > BYTES_MAX && ring.lines.len() > 1) {
            let gone = ring.lines.pop_front().map_or(0, |line| line.len());
            ring.bytes -= gone;
            ring.evicted += 1;
        }
        drop(ring);
        self.newest.send_replace(seq);
    }

    /// A reader of the buffered events after event `seen`, which then waits for more events if it
    /// follows the stream.
    pub(super) fn read(&self, seen: u64, follow: bool) -> Reader {
        let ring = self.ring();
        // A number from before a restart of the daemon is meaningless.
        let seen = if seen > ring.newest() { 0 } else { seen };
        let seen = seen.max(ring.evicted);
        drop(ring);
        let newest = self.newest.subscribe();
        Reader { stream: self.clone(), newest, seen, follow, over: false }
    }

    /// The newest events, the latest last.
    pub(super) fn latest(&self, count: usize) -> Vec<EventRecord> {
        let ring = self.ring();
        let skipped = ring.lines.len().saturating_sub(count);
        let lines = ring.lines.iter().skip(skipped);
        lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn newest(&self) -> u64 {
        self.evicted + self.lines.len() as u64
    }
}

impl Reader {
    /// The next lines, once there are any; `None` at the end.
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
        if self.seen < ring.evicted {
            self.over = true;
            let missed = ring.evicted - self.seen;
            let message = "this reader is too slow: unread events were evicted";
            let notice = json!({"event": "cut_off", "missed": missed, "message": message});
            return Some(format!("{notice}\n").into());
        }
        let from = usize::try_from(self.seen - ring.evicted).unwrap_or(usize::MAX);
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
        let event = AdminEvent::Alarm { message: message.to_owned(), path: None };
        stream.push(Timestamp::now(), event);
    }

    fn seqs(chunk: &Bytes) -> Vec<u64> {
        let text = std::str::from_utf8(chunk).unwrap();
        let record = |line: &str| serde_json::from_str::<EventRecord>(line).unwrap().seq;
        text.lines().map(record).collect()
    }

    /// The result of a read; `None` if the reader waits.
    fn now(reader: &mut Reader) -> Option<Option<Bytes>> {
        match task::spawn(reader.next()).poll() {
            std::task::Poll::Ready(chunk) => Some(chunk),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn late_reader_gets_buffered_events_then_new_ones() {
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
    fn slow_reader_gets_a_notice_and_is_disconnected() {
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
    fn large_events_are_evicted_sooner() {
        let stream = Stream::new();
        for _ in 0..40 {
            alarm(&stream, &"x".repeat(BYTES_MAX / 20));
        }
        let ring = stream.ring();
        assert!(ring.bytes <= BYTES_MAX && ring.lines.len() < 20, "{}", ring.lines.len());
        assert_eq!(ring.newest(), 40);
    }

    #[test]
    fn number_from_before_a_restart_is_ignored() {
        let stream = Stream::new();
        alarm(&stream, "only");
        assert_eq!(seqs(&now(&mut stream.read(99, false)).unwrap().unwrap()), [1]);
    }
}
