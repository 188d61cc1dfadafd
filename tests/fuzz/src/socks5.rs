//! A SOCKS5 client's bytes: the events and answers do not depend on how they are cut.

use polyrail_config::SocksReply;
use polyrail_gateway::socks5::{INPUT_MAX, Negotiation, ReplyCode, SocksEvent};
use polyrail_model::Destination;

use crate::input::Input;

/// Negotiates twice: with all bytes at once, and with pieces of the size of the first byte.
pub fn socks5(data: &[u8]) {
    let mut input = Input(data);
    let (cut, bits) = (usize::from(input.byte()).max(1), input.byte());
    let policy = if bits & 1 == 0 { SocksReply::Immediate } else { SocksReply::Dialed };
    let result = if bits & 2 == 0 { Ok(()) } else { Err(ReplyCode::ConnectionRefused) };
    let stream = input.rest();
    let whole = negotiate(policy, result, stream.chunks(usize::MAX));
    assert_eq!(negotiate(policy, result, stream.chunks(cut)), whole, "the cuts matter");
    let (consumed, events, _) = whole;
    assert!(consumed <= 2 * INPUT_MAX || events.iter().any(is_failure));
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
            let connects = matches!(event, SocksEvent::Connect(_));
            if let SocksEvent::Connect(destination) = &event {
                assert_ne!(port(destination), 0);
            }
            events.push(event);
            if connects {
                one.dialed(result);
            }
        }
        let some = one.output().len().min(3);
        output.extend_from_slice(&one.output()[..some]);
        one.sent(some);
    }
    output.extend_from_slice(one.output());
    assert!(!(one.is_done() && one.is_failed()));
    assert!(events.len() <= 2 && output.len() <= 12, "{events:?}, {output:?}");
    // After a failure the rest is ignored, so its length is that of the parts.
    (if one.is_failed() { usize::MAX } else { consumed }, events, output)
}

fn port(destination: &Destination) -> u16 {
    match destination {
        Destination::Address(address) => address.port(),
        Destination::Name(_, port) => *port,
    }
}

fn is_failure(event: &SocksEvent) -> bool {
    matches!(event, SocksEvent::Failed(_))
}
