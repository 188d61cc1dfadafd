//! The Internet checksum (RFC 1071) and its change with a field (RFC 1624, equation 3).

/// The checksum over all parts as one text; each part but the last has an even length.
pub(super) fn of(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let word = |bytes: &[u8]| u32::from(bytes[0]) << 8 | bytes.get(1).map_or(0, |b| u32::from(*b));
    !fold(words.map(word).sum())
}

/// The updated checksum after a change of one word.
pub(super) fn with(checksum: u16, from: u16, to: u16) -> u16 {
    !fold(u32::from(!checksum) + u32::from(!from) + u32::from(to))
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn examples_of_the_rfcs_match() {
        // RFC 1071, section 3.
        assert_eq!(of(&[&[0x00, 0x01, 0xf2, 0x03], &[0xf4, 0xf5, 0xf6, 0xf7]]), !0xddf2);
        // RFC 1624, section 4.
        assert_eq!(with(0xdd2f, 0x5555, 0x3285), 0x0000);
        assert_eq!(of(&[&[0x12]]), !0x1200);
    }

    proptest! {
        #[test]
        fn updated_checksum_equals_a_new_one(
            mut words in proptest::collection::vec(any::<u16>(), 2..99),
            place: proptest::sample::Index,
            to: u16,
        ) {
            let bytes = |words: &[u16]| -> Vec<u8> {
                words.iter().flat_map(|word| word.to_be_bytes()).collect()
            };
            // A text with its own checksum inside sums to zero, before and after.
            words[0] = 0;
            words[0] = of(&[&bytes(&words)]);
            let place = 1 + place.index(words.len() - 1);
            words[0] = with(words[0], words[place], to);
            words[place] = to;
            prop_assert_eq!(of(&[&bytes(&words)]), 0);
        }
    }
}
