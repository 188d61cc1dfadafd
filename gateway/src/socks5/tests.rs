//! Negotiations by table, by every cut of the input, and by random bytes.

use std::net::Ipv6Addr;

use polyrail_model::HostName;
use proptest::prelude::*;

use super::*;

const HELLO: &[u8] = &[5, 1, 0];
const OK: [u8; 10] = [5, 0, 0, 1, 0, 0, 0, 0, 0, 0];

fn request(command: u8, kind: u8, address: &[u8], port: u16) -> Vec<u8> {
    let mut bytes = HELLO.to_vec();
    bytes.extend([5, command, 0, kind]);
    bytes.extend(address);
    bytes.extend(port.to_be_bytes());
    bytes
}

fn named(name: &str, port: u16) -> Vec<u8> {
    let mut address = vec![u8::try_from(name.len()).unwrap()];
    address.extend(name.as_bytes());
    request(1, 3, &address, port)
}

/// Everything that a client and the gateway see of one negotiation.
#[derive(Debug, PartialEq, Eq)]
struct Transcript {
    events: Vec<SocksEvent>,
    output: Vec<u8>,
    first_data: Vec<u8>,
}

fn run(policy: SocksReply, pieces: &[&[u8]]) -> Transcript {
    let mut negotiation = Negotiation::new(policy);
    let mut outcome = Transcript { events: vec![], output: vec![], first_data: vec![] };
    for piece in pieces {
        let consumed = negotiation.receive(piece);
        assert!(negotiation.input.len() <= INPUT_MAX);
        outcome.first_data.extend(&piece[consumed..]);
        outcome.events.extend(std::iter::from_fn(|| negotiation.poll()));
        outcome.output.extend(negotiation.output());
        negotiation.sent(negotiation.output().len());
    }
    outcome
}

#[test]
fn destinations_are_parsed_and_first_data_is_not_consumed() {
    let v6 = "2001:db8::7".parse::<Ipv6Addr>().unwrap().octets();
    let mapped = "::ffff:192.0.2.1".parse::<Ipv6Addr>().unwrap().octets();
    let host = |name: &str, port| Destination::Name(HostName::new(name).unwrap(), port);
    let address = |text: &str| Destination::Address(text.parse().unwrap());
    for (bytes, destination) in [
        (request(1, 1, &[192, 0, 2, 1], 80), address("192.0.2.1:80")),
        (request(1, 4, &v6, 443), address("[2001:db8::7]:443")),
        (request(1, 4, &mapped, 80), address("192.0.2.1:80")),
        (named("example.com", 443), host("example.com", 443)),
        (named("192.0.2.1", 22), address("192.0.2.1:22")),
        (named("2001:db8::1", 22), address("[2001:db8::1]:22")),
        (named(&format!("{}.fr", "a.".repeat(124) + "b"), 1), {
            host(&format!("{}.fr", "a.".repeat(124) + "b"), 1)
        }),
    ] {
        let bytes = [&bytes[..], b"GET /"].concat();
        let outcome = run(SocksReply::Immediate, &[&bytes]);
        assert_eq!(outcome.events, [SocksEvent::Connect(destination)]);
        assert_eq!(outcome.output, [&[5, 0][..], &OK].concat());
        assert_eq!(outcome.first_data, b"GET /");
    }
}

#[test]
fn failures_are_answered_with_their_code() {
    let long = "x".repeat(255);
    for (bytes, failure, output) in [
        (vec![4, 1, 0, 80], Failure::Version(4), &[5, 0xff][..]),
        (b"GET / HTTP/1.1\r\n".to_vec(), Failure::Version(b'G'), &[5, 0xff]),
        (vec![5, 0], Failure::NoMethod, &[5, 0xff]),
        (vec![5, 2, 1, 2], Failure::NoMethod, &[5, 0xff]),
        (vec![5, 1, 0, 4], Failure::Version(4), &[5, 0, 5, 1]),
        (request(2, 1, &[1; 4], 80), Failure::Command(2), &[5, 0, 5, 7]),
        (request(4, 1, &[1; 4], 80), Failure::Command(4), &[5, 0, 5, 7]),
        (request(3, 2, &[1; 4], 80), Failure::AddressType(2), &[5, 0, 5, 8]),
        (request(3, 3, &[0], 80), Failure::Name, &[5, 0, 5, 4]),
        (request(1, 2, &[1; 4], 80), Failure::AddressType(2), &[5, 0, 5, 8]),
        (request(1, 3, &[0], 80), Failure::Name, &[5, 0, 5, 4]),
        (named("-bad-", 80), Failure::Name, &[5, 0, 5, 4]),
        (named("a b", 80), Failure::Name, &[5, 0, 5, 4]),
        (named("\u{e9}.fr", 80), Failure::Name, &[5, 0, 5, 4]),
        (named(&long, 80), Failure::Name, &[5, 0, 5, 4]),
        (named("example.com", 0), Failure::Port, &[5, 0, 5, 1]),
    ] {
        let outcome = run(SocksReply::Immediate, &[&bytes, b"more"]);
        assert_eq!(outcome.events, [SocksEvent::Failed(failure)], "{bytes:?}");
        assert_eq!(outcome.output[..output.len()], *output, "{failure}");
        assert!(matches!(outcome.output.len(), 2 | 12));
        assert_eq!(outcome.first_data, b"", "nothing is relayed after a failure");
    }
}

#[test]
fn dialed_reply_waits_for_the_result_of_the_dial() {
    for (result, code) in [(Ok(()), 0), (Err(ReplyCode::ConnectionRefused), 5)] {
        let mut negotiation = Negotiation::new(SocksReply::Dialed);
        let bytes = [&named("example.com", 80)[..], b"early"].concat();
        assert_eq!(negotiation.receive(&bytes), bytes.len() - 5);
        assert!(matches!(negotiation.poll(), Some(SocksEvent::Connect(_))));
        assert_eq!(negotiation.output(), [5, 0]);
        assert!(!negotiation.is_done() && !negotiation.is_failed());
        negotiation.sent(1);
        negotiation.dialed(result);
        negotiation.dialed(Ok(()));
        assert_eq!(negotiation.output(), [&[0, 5, code][..], &OK[2..]].concat());
        assert_eq!(negotiation.is_done(), result.is_ok());
        assert_eq!(negotiation.is_failed(), result.is_err());
        assert_eq!(negotiation.poll().is_some(), result.is_err());
    }
}

#[test]
fn association_is_answered_with_the_address_of_its_relay() {
    let (v4, v6) = ("192.0.2.9:7000".parse().unwrap(), "[2001:db8::9]:7000".parse().unwrap());
    for (bytes, port, result, reply) in [
        (request(3, 1, &[0; 4], 0), 0, Ok(v4), &b"\x05\0\0\x01\xc0\0\x02\x09\x1b\x58"[..]),
        (request(3, 1, &[10, 0, 0, 7], 5_000), 5_000, Ok(v4), b"\x05\0\0\x01\xc0"),
        (request(3, 4, &[0; 16], 1), 1, Ok(v6), b"\x05\0\0\x04\x20\x01\x0d\xb8"),
        (request(3, 3, b"\x01x", 2), 2, Err(ReplyCode::GeneralFailure), b"\x05\x01\0\x01\0"),
        (request(3, 1, &[0; 4], 0), 0, Err(ReplyCode::CommandNotSupported), b"\x05\x07\0\x01"),
    ] {
        for policy in [SocksReply::Immediate, SocksReply::Dialed] {
            let mut negotiation = Negotiation::new(policy);
            assert_eq!(negotiation.receive(&bytes), bytes.len());
            assert_eq!(negotiation.poll(), Some(SocksEvent::Associate(port)));
            negotiation.dialed(Ok(()));
            assert_eq!(negotiation.output(), [5, 0], "it is no dial");
            negotiation.associated(result);
            negotiation.associated(Ok(v4));
            assert_eq!(negotiation.output()[2..][..reply.len()], *reply);
            assert_eq!(negotiation.output().len(), if result == Ok(v6) { 24 } else { 12 });
            let ends = (negotiation.is_done(), negotiation.is_failed());
            assert_eq!(ends, (result.is_ok(), result.is_err()));
        }
    }
}

#[test]
fn reset_reasons_map_to_reply_codes() {
    for (reason, code) in [
        (ResetReason::Refused, 5),
        (ResetReason::Unreachable, 4),
        (ResetReason::NameNotFound, 4),
        (ResetReason::TimedOut, 6),
        (ResetReason::Forbidden, 2),
        (ResetReason::SessionLost, 3),
        (ResetReason::Overload, 1),
        (ResetReason::Quota, 1),
    ] {
        assert_eq!(ReplyCode::from(reason) as u8, code, "{reason:?}");
    }
    assert!(ResetReason::ALL.iter().all(|reason| ReplyCode::from(*reason) as u8 != 0));
}

fn messages() -> impl Strategy<Value = Vec<u8>> {
    let address = prop_oneof![
        prop::collection::vec(any::<u8>(), 4).prop_map(|a| request(1, 1, &a, 80)),
        prop::collection::vec(any::<u8>(), 16).prop_map(|a| request(1, 4, &a, 80)),
        "[a-z0-9.-]{0,255}".prop_map(|name| named(&name, 443)),
        (any::<u8>(), any::<u8>(), prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(command, kind, a)| request(command, kind, &a, 7)),
        prop::collection::vec(any::<u8>(), 0..300),
        prop::collection::vec(0u8..6, 0..40),
    ];
    (address, prop::collection::vec(any::<u8>(), 0..50)).prop_map(|(m, tail)| [m, tail].concat())
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_outcome(
        bytes in messages(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        dialed in any::<bool>(),
    ) {
        let policy = if dialed { SocksReply::Dialed } else { SocksReply::Immediate };
        let whole = run(policy, &[&bytes]);
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(&run(policy, &single), &whole);
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.extend([0, bytes.len()]);
        at.sort_unstable();
        let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        prop_assert_eq!(&run(policy, &pieces), &whole);
    }
}
