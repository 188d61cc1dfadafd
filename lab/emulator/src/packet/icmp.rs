//! The answer of a router to a packet that is too big for the next link.

use super::{Header, ICMP, ICMP_V6, checksum};

/// The size of an answer, all of it: RFC 1812, section 4.3.2.3, and RFC 4443, section 2.4.
const ANSWER_BYTES_MAX_V4: usize = 576;
const ANSWER_BYTES_MAX_V6: usize = 1280;

const ICMP_HEADER_BYTES: usize = 8;

/// "Fragmentation needed" (RFC 792, RFC 1191) or "packet too big" (RFC 4443) for the sender of a
/// packet, as from the packet's destination. `None` where none is due: the packet may be cut up,
/// is a later fragment, or is ICMP other than an echo.
pub(crate) fn too_big(packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let header = Header::of(packet)?;
    let is_error = match header.protocol {
        ICMP => !matches!(packet.get(header.transport?)?, 0 | 8),
        ICMP_V6 => !matches!(packet.get(header.transport?)?, 128 | 129),
        _ => false,
    };
    if is_error || !header.unbreakable || header.transport.is_none() {
        return None;
    }
    Some(if header.v6 { v6(packet, mtu) } else { v4(packet, mtu) })
}

fn v4(packet: &[u8], mtu: u16) -> Vec<u8> {
    let quoted = &packet[..packet.len().min(ANSWER_BYTES_MAX_V4 - 20 - ICMP_HEADER_BYTES)];
    let total = (20 + ICMP_HEADER_BYTES + quoted.len()) as u16;
    let [high, low] = mtu.to_be_bytes();
    let mut body = [&[3, 4, 0, 0, 0, 0, high, low], quoted].concat();
    let sum = checksum::of(&[&body]);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut answer = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, ICMP, 0, 0];
    answer[2..4].copy_from_slice(&total.to_be_bytes());
    answer.extend_from_slice(&packet[16..20]);
    answer.extend_from_slice(&packet[12..16]);
    let sum = checksum::of(&[&answer]);
    answer[10..12].copy_from_slice(&sum.to_be_bytes());
    answer.extend_from_slice(&body);
    answer
}

fn v6(packet: &[u8], mtu: u16) -> Vec<u8> {
    let quoted = &packet[..packet.len().min(ANSWER_BYTES_MAX_V6 - 40 - ICMP_HEADER_BYTES)];
    let length = (ICMP_HEADER_BYTES + quoted.len()) as u16;
    let [high, low] = mtu.to_be_bytes();
    let mut body = [&[2, 0, 0, 0, 0, 0, high, low], quoted].concat();
    let [length_high, length_low] = length.to_be_bytes();
    let mut answer = vec![0x60, 0, 0, 0, length_high, length_low, ICMP_V6, 64];
    answer.extend_from_slice(&packet[24..40]);
    answer.extend_from_slice(&packet[8..24]);
    // The pseudo header of RFC 8200, section 8.1.
    let pseudo = [0, 0, length_high, length_low, 0, 0, 0, ICMP_V6];
    let sum = checksum::of(&[&answer[8..40], &pseudo, &body]);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    answer.extend_from_slice(&body);
    answer
}

#[cfg(test)]
mod tests {
    use super::super::tests::packet;
    use super::super::{TCP, UDP};
    use super::*;

    #[test]
    fn answer_has_the_mtu_and_valid_checksums() {
        for (v6, length) in [(false, 576), (true, 1280)] {
            let big = packet(v6, UDP, &[7; 1400]);
            let answer = too_big(&big, 1280).unwrap();
            assert_eq!(answer.len(), length);
            let (from, to) = if v6 { (24..40, 8..24) } else { (16..20, 12..16) };
            let head = if v6 { 40 } else { 20 };
            assert_eq!(answer[if v6 { 8..24 } else { 12..16 }], big[from]);
            assert_eq!(answer[if v6 { 24..40 } else { 16..20 }], big[to]);
            assert_eq!(answer[head + 6..head + 8], 1280_u16.to_be_bytes());
            assert_eq!(answer[head + 8..], big[..length - head - 8]);
            if v6 {
                let bytes = (answer.len() - 40) as u16;
                let [high, low] = bytes.to_be_bytes();
                let pseudo = [0, 0, high, low, 0, 0, 0, ICMP_V6];
                assert_eq!(checksum::of(&[&answer[8..40], &pseudo, &answer[40..]]), 0);
            } else {
                assert_eq!(checksum::of(&[&answer[..20]]), 0);
                assert_eq!(checksum::of(&[&answer[20..]]), 0);
            }
        }
    }

    #[test]
    fn fragmentable_packets_fragments_and_icmp_errors_get_no_answer() {
        let mut breakable = packet(false, TCP, &[7; 1400]);
        breakable[6] = 0;
        let mut fragment = packet(false, TCP, &[7; 1400]);
        fragment[7] = 9;
        let errors = [packet(false, ICMP, &[3; 1400]), packet(true, ICMP_V6, &[2; 1400])];
        for packet in errors.into_iter().chain([breakable, fragment]) {
            assert_eq!(too_big(&packet, 1280), None);
        }
        assert!(
            too_big(&packet(false, ICMP, &[8; 1400]), 1280).is_some(),
            "an echo gets an answer"
        );
        assert!(too_big(&packet(true, ICMP_V6, &[128; 1400]), 1280).is_some());
    }
}
