//! A SOCKS5 client's bytes: the events and answers do not depend on how they are cut. Its
//! datagrams: an address that was parsed survives encoding.

use std::net::{Ipv6Addr, SocketAddr};

use polyrail_config::SocksReply;
use polyrail_gateway::socks5::udp_header::{self, HEADER_MAX};
use polyrail_gateway::socks5::{INPUT_MAX, Negotiation, ReplyCode, SocksEvent};
use polyrail_model::Destination;

use crate::input::Input;

/// Negotiates twice: with all bytes at once, and with pieces of the size of the first byte. Or
/// parses a datagram.
pub fn socks5(data: &[u8]) {
    let mut input = Input(data);
    let (cut, bits) = (usize::from(input.byte()).max(1), input.byte());
    let policy = if bits & 1 == 0 { SocksReply::Immediate } else { SocksReply::Dialed };
    let result = if bits & 2 == 0 { Ok(()) } else { Err(ReplyCode::ConnectionRefused) };
    let stream = input.rest();
    if bits & 4 != 0 {
        return parse_datagram(stream);
    }
    let whole = negotiate(policy, result, stream.chunks(usize::MAX));
    assert_eq!(negotiate(policy, result, stream.chunks(cut)), whole, "the cuts matter");
    let (consumed, events, _) = whole;
    assert!(consumed <= 2 * INPUT_MAX || events.iter().any(is_failure));
}

fn parse_datagram(datagram: &[u8]) {
    let Ok((destination, payload)) = udp_header::parse(datagram) else { return };
    assert!(destination.port() != 0 && datagram.ends_with(payload));
    assert!(datagram.len() - payload.len() <= HEADER_MAX);
    if let Destination::Address(address) = destination {
        let encoded = udp_header::encode(address, payload);
        assert_eq!(udp_header::parse(&encoded), Ok((Destination::Address(address), payload)));
    }
}

/// The consumed bytes, the events and the output.
fn negotiate<'a>(
    policy: SocksReply,
    result: Result<(), ReplyCode>,
    parts: impl Iterator<Item = &'a [u8]>,
) -> (usize, Vec<SocksEvent>, Vec<u8>) {
    let mut one = Negotiation::new(policy);
    let (mut consumed, mut events, mut output) = (0, Vec::new(), Vec::new());
    for part in parts {
        if one.is_done() {
            break;
        }
        consumed += one.receive(part);
        while let Some(event) = one.poll() {
            match &event {
                SocksEvent::Connect(destination) => {
                    assert_ne!(destination.port(), 0);
                    one.dialed(result);
                }
                SocksEvent::Associate(port) => {
                    let relay = SocketAddr::from((Ipv6Addr::LOCALHOST, *port));
                    one.associated(result.map(|()| relay));
                }
                SocksEvent::Failed(_) => {}
            }
            events.push(event);
        }
        let some = one.output().len().min(3);
        output.extend_from_slice(&one.output()[..some]);
        one.sent(some);
    }
    output.extend_from_slice(one.output());
    assert!(!(one.is_done() && one.is_failed()));
    assert!(events.len() <= 2 && output.len() <= 24, "{events:?}, {output:?}");
    // After a failure the rest is ignored, so its length is that of the parts.
    (if one.is_failed() { usize::MAX } else { consumed }, events, output)
}

fn is_failure(event: &SocksEvent) -> bool {
    matches!(event, SocksEvent::Failed(_))
}
