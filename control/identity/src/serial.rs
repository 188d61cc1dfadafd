//! Certificate serial numbers.

use std::fmt;
use std::str::FromStr;

/// A certificate's serial number: a positive number of at most 20 bytes (RFC 5280 4.1.2.2).
///
/// It prints as lower-case hexadecimal, two digits a byte, without leading zero bytes. It reads
/// the same, also with colons and in upper case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial(Vec<u8>);

/// A text that is not a serial number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a serial number: use hexadecimal digits, at most 40")]
pub struct SerialError(String);

impl Serial {
    /// A serial from the bytes of its number, most significant first.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        Self(bytes[zeros..].to_vec())
    }

    /// The bytes of the number, most significant first, without leading zeros.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromStr for Serial {
    type Err = SerialError;

    fn from_str(text: &str) -> Result<Self, SerialError> {
        let refuse = || SerialError(text.to_owned());
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b':').collect();
        if digits.is_empty() || digits.len() > 40 || digits.len() % 2 == 1 {
            return Err(refuse());
        }
        let nibble = |digit: u8| (digit as char).to_digit(16).and_then(|n| u8::try_from(n).ok());
        let byte = |pair: &[u8]| Some(nibble(pair[0])? << 4 | nibble(pair[1])?);
        let bytes: Option<Vec<u8>> = digits.chunks_exact(2).map(byte).collect();
        let serial = Self::from_bytes(&bytes.ok_or_else(refuse)?);
        if serial.0.is_empty() { Err(refuse()) } else { Ok(serial) }
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serials_read_as_they_print() {
        let serial = Serial::from_bytes(&[0, 0, 1, 0xab]);
        assert_eq!(serial.to_string(), "01ab");
        for text in ["01ab", "01:AB", "000001ab"] {
            assert_eq!(text.parse::<Serial>().unwrap(), serial, "{text}");
        }
        for bad in ["", "1", "0g", "00", ":", &"01".repeat(21), "é1"] {
            assert!(bad.parse::<Serial>().is_err(), "{bad:?} passed");
        }
    }
}
