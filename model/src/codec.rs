//! Fields of a payload: fixed bytes, variable-length integers and texts.

/// The largest number that a variable-length integer holds (RFC 9000 section 16).
pub const NUMBER_MAX: u64 = (1 << 62) - 1;

/// An invalid field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The payload ends inside a field.
    #[error("a payload is shorter than its fields")]
    Truncated,
    /// A field holds an invalid value.
    #[error("invalid field: {0}")]
    Invalid(&'static str),
}

/// The unread rest of a payload.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    /// The next `count` bytes.
    ///
    /// # Errors
    /// The payload is shorter.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], FieldError> {
        if count > self.0.len() {
            return Err(FieldError::Truncated);
        }
        let (head, rest) = self.0.split_at(count);
        self.0 = rest;
        Ok(head)
    }

    /// The next bytes, as an array.
    ///
    /// # Errors
    /// The payload is shorter.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], FieldError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// The next byte.
    ///
    /// # Errors
    /// The payload is empty.
    pub fn byte(&mut self) -> Result<u8, FieldError> {
        Ok(self.array::<1>()?[0])
    }

    /// A variable-length integer (RFC 9000 section 16).
    ///
    /// # Errors
    /// The payload is shorter.
    pub fn number(&mut self) -> Result<u64, FieldError> {
        let first = *self.0.first().ok_or(FieldError::Truncated)?;
        let bytes = self.take(1 << (first >> 6))?;
        let head = u64::from(bytes[0] & 0x3f);
        Ok(bytes[1..].iter().fold(head, |value, &byte| value << 8 | u64::from(byte)))
    }

    /// A text, preceded by its length in bytes.
    ///
    /// # Errors
    /// The text is truncated, longer than `longest` bytes, or not UTF-8.
    pub fn text(&mut self, longest: usize) -> Result<&'a str, FieldError> {
        let length = self.number()?;
        let length = usize::try_from(length).ok().filter(|&l| l <= longest);
        let bytes = self.take(length.ok_or(FieldError::Invalid("text too long"))?)?;
        std::str::from_utf8(bytes).map_err(|_| FieldError::Invalid("text is not UTF-8"))
    }

    /// All remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// Appends a variable-length integer in its shortest form. A number above [`NUMBER_MAX`] is
/// capped.
pub fn put_number(out: &mut Vec<u8>, value: u64) {
    let value = value.min(NUMBER_MAX);
    let (length, mark) = match value {
        0..=0x3f => (1, 0x00),
        0x40..=0x3fff => (2, 0x40),
        0x4000..=0x3fff_ffff => (4, 0x80),
        _ => (8, 0xc0),
    };
    let at = out.len();
    out.extend_from_slice(&value.to_be_bytes()[8 - length..]);
    out[at] |= mark;
}

/// Appends a text with its length in front, truncated to at most `longest` bytes at a character
/// boundary.
pub fn put_text(out: &mut Vec<u8>, text: &str, longest: usize) {
    let mut end = text.len().min(longest);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    put_number(out, end as u64);
    out.extend_from_slice(&text.as_bytes()[..end]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9000 appendix A.1.
    #[test]
    fn numbers_match_the_examples_of_rfc_9000() {
        let cases: [(&[u8], u64); 4] = [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ];
        for (bytes, value) in cases {
            assert_eq!(Cursor(bytes).number(), Ok(value));
            let mut out = Vec::new();
            put_number(&mut out, value);
            assert_eq!(out, bytes);
            assert_eq!(Cursor(&bytes[..bytes.len() - 1]).number(), Err(FieldError::Truncated));
        }
        assert_eq!(Cursor(&[0x40, 0x25]).number(), Ok(37));
    }

    #[test]
    fn texts_are_truncated_at_character_boundaries() {
        let mut out = Vec::new();
        put_text(&mut out, "äöü", 5);
        assert_eq!(Cursor(&out).text(5), Ok("äö"));
        assert!(Cursor(&out).text(3).is_err());
    }
}
