//! Lines of text from a stream, each of at most [`LINE_MAX`] bytes.
//!
//! A longer line is skipped and reported once. Text before the end of the stream counts as a line.
//! Reading is cancel-safe.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// The maximum length of a line, in bytes without its end.
pub(super) const LINE_MAX: usize = 16 * 1024;

/// Bytes read at once.
const CHUNK: usize = 4 * 1024;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Text without its end; empty lines are skipped.
    Text(String),
    /// More than [`LINE_MAX`] bytes.
    TooLong,
    /// Bytes that are not UTF-8.
    NotText,
}

/// Reads lines.
#[derive(Debug)]
pub(super) struct Lines<R> {
    reader: R,
    /// Unread bytes; at most [`LINE_MAX`] and one chunk.
    buffer: Vec<u8>,
    /// The buffer has no line end before this offset.
    searched: usize,
    /// The current line is too long.
    skipping: bool,
    ended: bool,
    number: u64,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        let buffer = Vec::new();
        Self { reader, buffer, searched: 0, skipping: false, ended: false, number: 0 }
    }

    /// The number of the last line, counted from 1, including empty lines.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next line; `None` at the stream's end.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(line) = self.take() {
                return Ok(Some(line));
            }
            if self.ended {
                return Ok(None);
            }
            let mut chunk = [0; CHUNK];
            match self.reader.read(&mut chunk).await? {
                0 => self.end(),
                count => self.buffer.extend_from_slice(&chunk[..count]),
            }
        }
    }

    /// The stream.
    pub(super) fn get_mut(&mut self) -> &mut R {
        &mut self.reader
    }

    /// The rest of the buffer counts as a line.
    fn end(&mut self) {
        self.ended = true;
        if !self.buffer.is_empty() || self.skipping {
            self.buffer.push(b'\n');
        }
    }

    /// The next line in the buffer.
    fn take(&mut self) -> Option<Line> {
        loop {
            let found = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
            let Some(end) = found.map(|place| self.searched + place) else {
                self.searched = self.buffer.len();
                if self.buffer.len() > LINE_MAX {
                    (self.skipping, self.searched) = (true, 0);
                    self.buffer.clear();
                }
                return None;
            };
            let rest = self.buffer.split_off(end + 1);
            let mut line = std::mem::replace(&mut self.buffer, rest);
            self.searched = 0;
            self.number += 1;
            if std::mem::take(&mut self.skipping) || line.len() > LINE_MAX + 1 {
                return Some(Line::TooLong);
            }
            while matches!(line.last(), Some(b'\n' | b'\r')) {
                line.pop();
            }
            if !line.is_empty() {
                return Some(String::from_utf8(line).map_or(Line::NotText, Line::Text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{block_on, io::Builder};

    use super::*;

    async fn all<R: AsyncRead + Unpin>(reader: R) -> (Vec<Line>, u64) {
        let mut lines = Lines::new(reader);
        let mut found = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            found.push(line);
        }
        (found, lines.number())
    }

    fn text(text: &str) -> Line {
        Line::Text(text.to_owned())
    }

    #[test]
    fn lines_do_not_depend_on_chunk_boundaries() {
        let bytes = b"one\r\n\n\ntwo\n\xff\xfe\nthree";
        let expected = (vec![text("one"), text("two"), Line::NotText, text("three")], 6);
        for cut in 0..=bytes.len() {
            let mut builder = Builder::new();
            for part in [&bytes[..cut], &bytes[cut..]].into_iter().filter(|p| !p.is_empty()) {
                builder.read(part);
            }
            assert_eq!(block_on(all(builder.build())), expected, "cut at {cut}");
        }
    }

    #[test]
    fn long_line_is_skipped() {
        for length in [LINE_MAX, LINE_MAX + 1, LINE_MAX + CHUNK, 10 * LINE_MAX] {
            let long = "x".repeat(length);
            let bytes = format!("a\n{long}\nb\n{long}");
            let (lines, number) = block_on(all(bytes.as_bytes()));
            let seen = if length > LINE_MAX { Line::TooLong } else { text(&long) };
            assert!(lines == [text("a"), seen.clone(), text("b"), seen], "{length}");
            assert_eq!(number, 4);
        }
    }

    #[test]
    fn endless_line_uses_bounded_memory() {
        block_on(async {
            let mut lines = Lines::new(tokio::io::repeat(b'x').take(1 << 20));
            assert_eq!(lines.next().await.unwrap(), Some(Line::TooLong));
            assert!(lines.buffer.capacity() <= 2 * (LINE_MAX + CHUNK));
            assert_eq!(lines.next().await.unwrap(), None);
        });
    }
}
