//! IP packets: their class, the ICMP answer to large ones, and a NAT.
//!
//! Nothing here has a socket or a clock. A malformed packet has no [`Header`] and passes unchanged.

mod checksum;
pub(crate) mod icmp;
pub(crate) mod nat;

use crate::link::Class;

/// The most extension headers that are parsed; a packet with more has no known transport.
const EXTENSIONS_MAX: usize = 8;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;

/// Extension headers (RFC 8200, section 4; RFC 4302).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

/// The headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    v6: bool,
    /// The transport protocol, or the last parsed extension header.
    protocol: u8,
    /// The beginning of the transport's header; `None` in later fragments.
    transport: Option<usize>,
    /// Routers must not fragment it.
    unbreakable: bool,
}

/// The class of a packet. Each fragment of UDP is UDP.
pub(crate) fn class(packet: &[u8]) -> Class {
    match Header::of(packet) {
        Some(header) if header.protocol == UDP => Class::Udp,
        _ => Class::Other,
    }
}

impl Header {
    fn of(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::of_v4(packet),
            6 => Self::of_v6(packet),
            _ => None,
        }
    }

    fn of_v4(packet: &[u8]) -> Option<Self> {
        let length = usize::from(packet.first()? & 0x0f) * 4;
        if length < 20 || packet.len() < length {
            return None;
        }
        let flags = u16_at(packet, 6)?;
        let first = flags & 0x1fff == 0;
        Some(Self {
            v6: false,
            protocol: packet[9],
            transport: first.then_some(length),
            unbreakable: flags & 0x4000 != 0,
        })
    }

    fn of_v6(packet: &[u8]) -> Option<Self> {
        if packet.len() < 40 {
            return None;
        }
        let (mut protocol, mut at) = (packet[6], 40);
        let mut first = true;
        for _ in 0..EXTENSIONS_MAX {
            let units = |scale: usize| packet.get(at + 1).map(|n| usize::from(*n) * scale);
            let length = match protocol {
                HOP_BY_HOP | ROUTING | DESTINATION => units(8)? + 8,
                AUTHENTICATION => units(4)? + 8,
                FRAGMENT => {
                    first = u16_at(packet, at + 2)? & 0xfff8 == 0;
                    8
                }
                _ => break,
            };
            protocol = *packet.get(at)?;
            at += length;
            // A later fragment continues with data.
            if !first {
                break;
            }
        }
        Some(Self { v6: true, protocol, transport: first.then_some(at), unbreakable: true })
    }
}

fn u16_at(packet: &[u8], at: usize) -> Option<u16> {
    let bytes = packet.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A packet of one of the two families, without a checksum.
    pub(crate) fn packet(v6: bool, protocol: u8, body: &[u8]) -> Vec<u8> {
        let mut packet = if v6 { vec![0; 40] } else { vec![0; 20] };
        let total = packet.len() + body.len();
        if v6 {
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&(body.len() as u16).to_be_bytes());
            packet[6..8].copy_from_slice(&[protocol, 64]);
            (packet[8], packet[23], packet[24], packet[39]) = (0xfd, 1, 0xfd, 2);
        } else {
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&(total as u16).to_be_bytes());
            packet[6..10].copy_from_slice(&[0x40, 0, 64, protocol]);
            packet[12..20].copy_from_slice(&[10, 1, 0, 1, 10, 1, 0, 2]);
            let sum = checksum::of(&[&packet]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        packet.extend_from_slice(body);
        packet
    }

    #[test]
    fn udp_is_recognised_in_both_families_behind_extensions_and_in_fragments() {
        let udp = [0x12, 0x34, 0, 53, 0, 8, 0, 0];
        let behind = |next: u8, header: &[u8]| packet(true, next, &[header, &udp].concat());
        let options = [UDP, 0, 0, 0, 0, 0, 0, 0];
        let mut second = packet(false, UDP, &udp);
        second[7] = 9;
        let padding = [[AUTHENTICATION, 1].as_slice(), &[0; 14], &[UDP, 1], &[0; 10]].concat();
        for (packet, transport) in [
            (packet(false, UDP, &udp), Some(20)),
            (packet(true, UDP, &udp), Some(40)),
            (behind(DESTINATION, &options), Some(48)),
            (behind(FRAGMENT, &[UDP, 0, 0, 1, 0, 0, 0, 1]), Some(48)),
            (behind(FRAGMENT, &[UDP, 0, 0, 9, 0, 0, 0, 1]), None),
            (behind(HOP_BY_HOP, &padding), Some(68)),
            (second, None),
        ] {
            let header = Header::of(&packet).unwrap();
            assert_eq!((header.protocol, header.transport), (UDP, transport), "{packet:x?}");
            assert_eq!(class(&packet), Class::Udp);
        }
    }

    #[test]
    fn packet_other_than_udp_is_classified_as_other() {
        let nested = [[DESTINATION, 0, 0, 0, 0, 0, 0, 0]; EXTENSIONS_MAX + 1].concat();
        for packet in [
            packet(false, TCP, &[0; 20]),
            packet(true, ICMP_V6, &[0; 8]),
            packet(true, DESTINATION, &nested),
            packet(true, HOP_BY_HOP, &[]),
            packet(false, UDP, &[])[..19].to_vec(),
            vec![0x55; 60],
            vec![],
        ] {
            assert_eq!(class(&packet), Class::Other, "{packet:x?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_handled_without_panic(mut packet: Vec<u8>, version in 0_u8..16) {
            if let Some(first) = packet.first_mut() {
                *first = *first & 0x0f | version << 4;
            }
            let _ = class(&packet);
            let _ = icmp::too_big(&packet, 1280);
            let mut nat = nat::Nat::new(1);
            nat.obey(nat::Order::On);
            let _ = (nat.outbound(&mut packet), nat.inbound(&mut packet));
        }
    }
}
