//! Lines of text from a stream, each of at most [`LINE_MAX`] bytes.
//!
//! A longer line is skipped and reported once. Text before the end of the stream counts as a line.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

/// The maximum length of a line, in bytes without its end.
pub(super) const LINE_MAX: u64 = 16 * 1024;

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
    reader: BufReader<R>,
    /// The line that is being read.
    buffer: Vec<u8>,
    number: u64,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader: BufReader::new(reader), buffer: Vec::new(), number: 0 }
    }

    /// The number of the last line, counted from 1, including empty lines.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next line; `None` at the stream's end. Not cancel-safe: a dropped call loses bytes.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let (line, mut too_long) = (&mut self.buffer, false);
            line.clear();
            // One byte more for the line's end. A longer line is read in several parts.
            while (&mut self.reader).take(LINE_MAX + 1).read_until(b'\n', line).await? > 0 {
                if line.ends_with(b"\n") {
                    break;
                }
                if line.len() as u64 > LINE_MAX {
                    too_long = true;
                    line.clear();
                }
            }
            if line.is_empty() && !too_long {
                return Ok(None);
            }
            self.number += 1;
            if too_long {
                return Ok(Some(Line::TooLong));
            }
            while matches!(line.last(), Some(b'\n' | b'\r')) {
                line.pop();
            }
            if !line.is_empty() {
                let line = std::mem::take(line);
                return Ok(Some(String::from_utf8(line).map_or(Line::NotText, Line::Text)));
            }
        }
    }

    /// The stream.
    pub(super) fn get_mut(&mut self) -> &mut R {
        self.reader.get_mut()
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
        for length in [LINE_MAX, LINE_MAX + 1, 3 * LINE_MAX / 2, 10 * LINE_MAX] {
            let long = "x".repeat(length as usize);
            let bytes = format!("a\n{long}\nb\n{long}");
            let (lines, number) = block_on(all(bytes.as_bytes()));
            let seen = if length > LINE_MAX { Line::TooLong } else { text(&long) };
            assert!(lines == [text("a"), seen.clone(), text("b"), seen], "{length}");
            assert_eq!(number, 4);
        }
    }

    #[test]
    fn endless_line_needs_bounded_memory() {
        let mut lines = Lines::new(tokio::io::repeat(b'x').take(1 << 26));
        assert_eq!(block_on(lines.next()).unwrap(), Some(Line::TooLong));
        assert!(lines.buffer.capacity() as u64 <= 4 * LINE_MAX);
    }
}
