//! A port translator at the far end of a link, like a carrier's NAT.
//!
//! It maps each address and port of TCP or UDP on the near side to a port of the same address on
//! the far side, for all peers (endpoint-independent mapping and filtering, RFC 4787). Packets from
//! the far side to an unmapped port are dropped. ICMP and later fragments, which have no ports,
//! pass.
//!
//! Before the first [`Order::Rebind`] a mapping keeps its port if that is free, and existing
//! connections continue. `Rebind` drops all mappings: UDP gets new ports with its next packet
//! outwards. After that only a SYN maps TCP, so other packets of old connections are dropped
//! silently.

use std::collections::BTreeMap;

use super::{Header, TCP, UDP, checksum, u16_at};
use crate::dice::Dice;

/// The most mappings; beyond that the least recently used one is evicted.
pub(crate) const MAPPINGS_MAX: usize = 4096;

/// The least port that is assigned.
const PORT_MIN: u16 = 1024;

/// SYN and ACK among the flags of TCP.
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// A command to the translator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Translate from now on; no effect if it already does.
    On,
    /// Pass everything unchanged from now on, and drop all mappings.
    Off,
    /// Drop all mappings and assign new ports. Refused if it is off.
    Rebind,
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    Passes,
    Dropped,
}

/// One address of the near side, as 16 bytes, with the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Host {
    v6: bool,
    protocol: u8,
    address: [u8; 16],
}

/// The translator of one link.
#[derive(Debug)]
pub(crate) struct Nat {
    on: bool,
    /// It has not been rebound yet.
    first: bool,
    out: BTreeMap<(Host, u16), Mapping>,
    back: BTreeMap<(Host, u16), u16>,
    next_port: u16,
    uses: u64,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    outside: u16,
    last_use: u64,
}

/// The ports of a packet.
struct Ports {
    protocol: u8,
    /// The beginning of the transport's header.
    at: usize,
    checksum_at: usize,
    source: u16,
    destination: u16,
    opens: bool,
}

impl Nat {
    /// A translator that is off. The seed decides the first new port.
    pub(crate) fn new(seed: u64) -> Self {
        let drawn = Dice::new(seed).number() as u16;
        Self {
            on: false,
            first: true,
            out: BTreeMap::new(),
            back: BTreeMap::new(),
            next_port: drawn.max(PORT_MIN),
            uses: 0,
        }
    }

    /// Executes a command; false if there is nothing to rebind.
    pub(crate) fn obey(&mut self, order: Order) -> bool {
        match order {
            Order::On if self.on => return true,
            Order::Rebind if !self.on => return false,
            Order::On | Order::Off => (self.on, self.first) = (order == Order::On, true),
            Order::Rebind => self.first = false,
        }
        self.out.clear();
        self.back.clear();
        true
    }

    /// Translates a packet from the near side.
    pub(crate) fn outbound(&mut self, packet: &mut [u8]) -> Passage {
        let Some((header, ports)) = self.concerns(packet) else { return Passage::Passes };
        let host = header.host(packet, ports.protocol, true);
        match self.outside_of(host, &ports) {
            Some(port) => ports.rewrite(packet, 0, port),
            None => return Passage::Dropped,
        }
        Passage::Passes
    }

    /// Translates a packet from the far side back.
    pub(crate) fn inbound(&mut self, packet: &mut [u8]) -> Passage {
        let Some((header, ports)) = self.concerns(packet) else { return Passage::Passes };
        let host = header.host(packet, ports.protocol, false);
        match self.back.get(&(host, ports.destination)) {
            Some(inside) => ports.rewrite(packet, 2, *inside),
            None => return Passage::Dropped,
        }
        Passage::Passes
    }

    fn concerns(&self, packet: &[u8]) -> Option<(Header, Ports)> {
        let header = Header::of(packet).filter(|_| self.on)?;
        Some((header, Ports::of(packet, &header)?))
    }

    /// The port of the far side; `None` when the packet may not make a mapping.
    fn outside_of(&mut self, host: Host, ports: &Ports) -> Option<u16> {
        self.uses += 1;
        let last_use = self.uses;
        if let Some(mapping) = self.out.get_mut(&(host, ports.source)) {
            mapping.last_use = last_use;
            return Some(mapping.outside);
        }
        if !self.first && !ports.opens {
            return None;
        }
        if self.out.len() >= MAPPINGS_MAX {
            self.forget_oldest();
        }
        let keeps = self.first && !self.back.contains_key(&(host, ports.source));
        let outside = if keeps { ports.source } else { self.new_port(host, ports.source) };
        self.out.insert((host, ports.source), Mapping { outside, last_use });
        self.back.insert((host, outside), ports.source);
        Some(outside)
    }

    /// The next free port; there are more ports than mappings.
    fn new_port(&mut self, host: Host, other_than: u16) -> u16 {
        loop {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(PORT_MIN);
            if port != other_than && !self.back.contains_key(&(host, port)) {
                return port;
            }
        }
    }

    fn forget_oldest(&mut self) {
        let oldest = self.out.iter().min_by_key(|(_, mapping)| mapping.last_use);
        if let Some((&(host, inside), &Mapping { outside, .. })) = oldest {
            self.out.remove(&(host, inside));
            self.back.remove(&(host, outside));
        }
    }
}

impl Header {
    /// The near side's end: the source of outgoing packets, the destination of incoming ones.
    fn host(&self, packet: &[u8], protocol: u8, outbound: bool) -> Host {
        let (start, length) = match (self.v6, outbound) {
            (false, true) => (12, 4),
            (false, false) => (16, 4),
            (true, true) => (8, 16),
            (true, false) => (24, 16),
        };
        let mut address = [0; 16];
        address[..length].copy_from_slice(&packet[start..start + length]);
        Host { v6: self.v6, protocol, address }
    }
}

impl Ports {
    /// `None` without ports, or if the header is incomplete.
    fn of(packet: &[u8], header: &Header) -> Option<Self> {
        let at = header.transport?;
        let (length, checksum_at) = match header.protocol {
            TCP => (20, at + 16),
            UDP => (8, at + 6),
            _ => return None,
        };
        let transport = packet.get(at..at + length)?;
        Some(Self {
            protocol: header.protocol,
            at,
            checksum_at,
            source: u16_at(transport, 0)?,
            destination: u16_at(transport, 2)?,
            opens: header.protocol == UDP || transport[13] & (SYN | ACK) == SYN,
        })
    }

    /// Writes another port at `place` of the transport's header.
    fn rewrite(&self, packet: &mut [u8], place: usize, port: u16) {
        let old = if place == 0 { self.source } else { self.destination };
        let sum = u16::from_be_bytes([packet[self.checksum_at], packet[self.checksum_at + 1]]);
        let is_udp = self.protocol == UDP;
        packet[self.at + place..self.at + place + 2].copy_from_slice(&port.to_be_bytes());
        // UDP over IPv4 may have no checksum, written as zero; a sum of zero is written as ones
        // (RFC 768).
        if is_udp && sum == 0 {
            return;
        }
        let sum = match checksum::with(sum, old, port) {
            0 if is_udp => 0xffff,
            sum => sum,
        };
        packet[self.checksum_at..self.checksum_at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::packet;
    use super::super::{ICMP, ICMP_V6, class};
    use super::*;
    use crate::link::Class;
    use proptest::prelude::*;

    /// A packet of TCP (with these flags) or UDP between two ports, with a sound checksum.
    fn segment(v6: bool, flags: Option<u8>, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
        let length = if flags.is_some() { 20 } else { 8 };
        let mut body = vec![0; length];
        body[0..2].copy_from_slice(&ports.0.to_be_bytes());
        body[2..4].copy_from_slice(&ports.1.to_be_bytes());
        body.extend_from_slice(payload);
        match flags {
            Some(flags) => (body[12], body[13]) = (0x50, flags),
            None => body[4..6].copy_from_slice(&((8 + payload.len()) as u16).to_be_bytes()),
        }
        let mut packet = packet(v6, if flags.is_some() { TCP } else { UDP }, &body);
        let sum = match transport_sum(&packet) {
            0 if flags.is_none() => 0xffff,
            sum => sum,
        };
        let at = if v6 { 40 } else { 20 } + if flags.is_some() { 16 } else { 6 };
        packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    /// The sum over the transport with its pseudo header (RFC 9293, section 3.1): zero if sound.
    fn transport_sum(packet: &[u8]) -> u16 {
        let header = Header::of(packet).unwrap();
        let at = header.transport.unwrap();
        let addresses = if header.v6 { &packet[8..40] } else { &packet[12..20] };
        let [high, low] = ((packet.len() - at) as u16).to_be_bytes();
        checksum::of(&[addresses, &[0, header.protocol, high, low], &packet[at..]])
    }

    /// The answer from the far side to a translated packet.
    fn answer(out: &[u8], flags: Option<u8>, payload: &[u8]) -> Vec<u8> {
        let header = Header::of(out).unwrap();
        let ports = Ports::of(out, &header).unwrap();
        let mut back = segment(header.v6, flags, (ports.destination, ports.source), payload);
        let (one, other) = if header.v6 { (8..24, 24..40) } else { (12..16, 16..20) };
        // Swapping the addresses does not change the checksum.
        back[one.clone()].copy_from_slice(&out[other.clone()]);
        back[other].copy_from_slice(&out[one]);
        back
    }

    fn source(packet: &[u8]) -> u16 {
        Ports::of(packet, &Header::of(packet).unwrap()).unwrap().source
    }

    fn started() -> Nat {
        let mut nat = Nat::new(7);
        assert!(nat.obey(Order::On));
        nat
    }

    #[test]
    fn rebinding_assigns_new_ports_and_closes_the_old_ones() {
        for v6 in [false, true] {
            let mut nat = started();
            let mut out = segment(v6, None, (5000, 443), b"hello");
            assert_eq!(nat.outbound(&mut out), Passage::Passes);
            assert_eq!(source(&out), 5000, "a port that is free is kept");
            let back = answer(&out, None, b"you");
            assert_eq!(nat.inbound(&mut back.clone()), Passage::Passes);
            assert!(nat.obey(Order::Rebind));
            assert_eq!(nat.inbound(&mut back.clone()), Passage::Dropped);
            let mut out = segment(v6, None, (5000, 443), b"again");
            assert_eq!(nat.outbound(&mut out), Passage::Passes);
            assert_ne!(source(&out), 5000);
            assert_eq!(nat.inbound(&mut back.clone()), Passage::Dropped, "the old port stays shut");
            let mut again = answer(&out, None, b"you");
            assert_eq!(nat.inbound(&mut again), Passage::Passes);
            assert_eq!(again[again.len() - 9..][..2], 5000_u16.to_be_bytes());
        }
    }

    #[test]
    fn tcp_is_dropped_after_rebinding_until_it_connects_again() {
        for v6 in [false, true] {
            let mut nat = started();
            let mut data = segment(v6, Some(ACK), (5000, 443), b"data");
            assert_eq!(
                nat.outbound(&mut data.clone()),
                Passage::Passes,
                "the connection is older than the NAT"
            );
            assert!(nat.obey(Order::Rebind));
            assert_eq!(nat.outbound(&mut data), Passage::Dropped);
            let syn_ack = SYN | ACK;
            let mut odd = segment(v6, Some(syn_ack), (5000, 443), b"");
            assert_eq!(nat.outbound(&mut odd), Passage::Dropped);
            let mut syn = segment(v6, Some(SYN), (5001, 443), b"");
            assert_eq!(nat.outbound(&mut syn), Passage::Passes);
            assert_eq!(nat.inbound(&mut answer(&syn, Some(syn_ack), b"")), Passage::Passes);
        }
    }

    #[test]
    fn packet_without_ports_passes_unchanged() {
        let mut nat = started();
        nat.obey(Order::Rebind);
        let mut fragment = segment(false, None, (1, 2), b"abc");
        fragment[7] = 9;
        let mut short = segment(false, Some(SYN), (1, 2), b"");
        short.truncate(36);
        for packet in
            [packet(false, ICMP, &[3; 60]), packet(true, ICMP_V6, &[1; 60]), fragment, short]
        {
            let mut seen = packet.clone();
            assert_eq!(nat.outbound(&mut seen), Passage::Passes);
            assert_eq!(nat.inbound(&mut seen), Passage::Passes);
            assert_eq!(seen, packet);
        }
        assert!(nat.obey(Order::Off) && !nat.obey(Order::Rebind), "nothing to rebind");
        let mut stranger = segment(false, None, (1, 2), b"abc");
        assert_eq!(nat.inbound(&mut stranger), Passage::Passes, "it is off");
    }

    #[test]
    fn full_table_evicts_the_least_recently_used_mapping() {
        let mut nat = started();
        let send = |nat: &mut Nat, port: u16| {
            let mut out = segment(false, None, (port, 443), b"x");
            assert_eq!(nat.outbound(&mut out), Passage::Passes);
            answer(&out, None, b"y")
        };
        let first = send(&mut nat, 2000);
        let second = send(&mut nat, 2001);
        for port in 2002..2000 + MAPPINGS_MAX as u16 {
            send(&mut nat, port);
        }
        send(&mut nat, 2000);
        send(&mut nat, 60_000);
        assert_eq!((nat.out.len(), nat.back.len()), (MAPPINGS_MAX, MAPPINGS_MAX));
        assert_eq!(nat.inbound(&mut first.clone()), Passage::Passes);
        assert_eq!(nat.inbound(&mut second.clone()), Passage::Dropped);
    }

    #[test]
    fn missing_udp_checksum_stays_missing() {
        let mut nat = started();
        nat.obey(Order::Rebind);
        let mut out = segment(false, None, (5000, 443), b"hello");
        out[26..28].fill(0);
        nat.outbound(&mut out);
        assert_eq!(out[26..28], [0, 0]);
        assert_ne!(source(&out), 5000);
    }

    proptest! {
        #[test]
        fn checksums_stay_valid_and_the_return_path_restores_the_packet(
            v6: bool,
            tcp: bool,
            hosts in proptest::collection::vec((any::<u16>(), any::<u16>()), 1..30),
            payload: Vec<u8>,
            rebinds in proptest::collection::vec(any::<bool>(), 30),
        ) {
            let payload = &payload[..payload.len().min(1400)];
            let flags = tcp.then_some(SYN);
            let mut nat = started();
            for ((inside, outside), rebind) in hosts.into_iter().zip(rebinds) {
                if rebind {
                    nat.obey(Order::Rebind);
                }
                let before = segment(v6, flags, (inside, outside), payload);
                let mut out = before.clone();
                prop_assert_eq!(nat.outbound(&mut out), Passage::Passes);
                prop_assert_eq!(transport_sum(&out), 0);
                prop_assert_eq!(class(&out) == Class::Udp, !tcp);
                let mut back = answer(&out, flags, payload);
                prop_assert_eq!(nat.inbound(&mut back), Passage::Passes);
                prop_assert_eq!(transport_sum(&back), 0);
                // Translated back, the packet equals the original: only the ports change.
                let once_more = answer(&back, flags, payload);
                prop_assert_eq!(once_more, before);
            }
            for (host, inside) in nat.out.keys() {
                let outside = nat.out[&(*host, *inside)].outside;
                prop_assert_eq!(nat.back.get(&(*host, outside)), Some(inside));
            }
            prop_assert_eq!(nat.out.len(), nat.back.len());
        }
    }
}
