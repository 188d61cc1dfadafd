//! The forwarder against a resolver that the test emulates.

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query as Question, ResponseCode};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use polyrail_model::UserId;
use proptest::prelude::*;

use super::super::{QUERY_MAX, UDP_ANSWER_MAX};
use super::*;

const USER: UserId = UserId(1);

fn client(number: u16) -> DnsClient {
    let address = SocketAddr::from(([10, 9, 0, 2], 1000 + number));
    DnsClient { address, asked: "9.9.9.9:53".parse().unwrap() }
}

fn query(id: u16, name: &str, edns: Option<u16>) -> Message {
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Question::query(Name::from_ascii(name).unwrap(), RecordType::TXT));
    if let Some(size) = edns {
        let mut edns = Edns::new();
        edns.set_max_payload(size).set_dnssec_ok(true);
        message.set_edns(edns);
    }
    message
}

/// A resolver's answer with this number of texts of 200 bytes each.
fn answer(query: &[u8], texts: usize) -> Vec<u8> {
    let mut message = Message::from_vec(query).unwrap();
    message.metadata.message_type = MessageType::Response;
    let name = message.queries[0].name().clone();
    for _ in 0..texts {
        let text = RData::TXT(TXT::new(vec!["x".repeat(200)]));
        message.add_answer(Record::from_rdata(name.clone(), 60, text));
    }
    message.to_vec().unwrap()
}

fn frame(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat()
}

/// All queries that the forwarder has for the stream.
fn sent(forwarder: &mut Forwarder, now: Instant) -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        // A stream that accepts seven bytes at a time.
        let some: Vec<u8> = forwarder.output().iter().copied().take(7).collect();
        if some.is_empty() {
            break;
        }
        forwarder.written(now, some.len());
        bytes.extend(some);
    }
    let mut messages = Vec::new();
    let mut rest = &bytes[..];
    while let [high, low, tail @ ..] = rest {
        let (message, tail) = tail.split_at(u16::from_be_bytes([*high, *low]).into());
        messages.push(message.to_vec());
        rest = tail;
    }
    messages
}

fn replies(forwarder: &mut Forwarder) -> Vec<(DnsClient, Message)> {
    std::iter::from_fn(|| forwarder.poll_reply())
        .map(|reply| (reply.client, Message::from_vec(&reply.bytes).unwrap()))
        .collect()
}

fn ask(forwarder: &mut Forwarder, now: Instant, client: DnsClient, message: &Message) {
    forwarder.query(now, USER, client, &message.to_vec().unwrap());
}

#[test]
fn clients_with_equal_ids_get_their_own_answers() {
    let (mut forwarder, now) = (Forwarder::new(7), Instant::now());
    assert!(!forwarder.wants_stream());
    for number in 0..3 {
        ask(&mut forwarder, now, client(number), &query(42, &format!("n{number}.example"), None));
    }
    assert!(forwarder.wants_stream());
    let mut queries = sent(&mut forwarder, now);
    assert!(!forwarder.wants_stream());
    let ids: std::collections::BTreeSet<_> = queries.iter().map(|q| q[..2].to_vec()).collect();
    assert_eq!(ids.len(), 3);
    // Out of order, first in one piece, then byte by byte.
    queries.reverse();
    let answers: Vec<u8> = queries.iter().flat_map(|query| frame(&answer(query, 1))).collect();
    let (whole, bytes) = answers.split_at(answers.len() / 3);
    forwarder.receive(now, whole);
    bytes.iter().for_each(|byte| forwarder.receive(now, &[*byte]));
    let replies = replies(&mut forwarder);
    let order: Vec<_> = replies.iter().map(|(client, _)| *client).collect();
    assert_eq!(order, [client(2), client(1), client(0)]);
    for (number, (_, message)) in [2, 1, 0].into_iter().zip(&replies) {
        assert_eq!(message.metadata.id, 42);
        assert_eq!(message.metadata.message_type, MessageType::Response);
        let name = Name::from_ascii(format!("n{number}.example.")).unwrap();
        assert_eq!((message.queries[0].name(), message.answers.len()), (&name, 1));
    }
    assert_eq!(forwarder.waiting(), 0);
}

#[test]
fn long_answers_are_truncated_to_the_clients_limit() {
    // 512 without EDNS, the client's size with EDNS, at least 512 and at most our own limit.
    for (edns, texts, cut) in [
        (None, 1, false),
        (None, 3, true),
        (Some(100), 1, false),
        (Some(100), 3, true),
        (Some(1000), 3, false),
        (Some(1000), 5, true),
        (Some(4096), 5, false),
        (Some(4096), 6, true),
    ] {
        let (mut forwarder, now) = (Forwarder::new(7), Instant::now());
        ask(&mut forwarder, now, client(0), &query(5, "a.example", edns));
        let queries = sent(&mut forwarder, now);
        forwarder.receive(now, &frame(&answer(&queries[0], texts)));
        let reply = forwarder.poll_reply().unwrap();
        let message = Message::from_vec(&reply.bytes).unwrap();
        assert_eq!(message.metadata.truncation, cut, "{edns:?} with {texts}");
        assert_eq!(message.answers.len(), if cut { 0 } else { texts });
        assert_eq!(message.queries.len(), 1);
        assert_eq!(message.edns.is_some(), edns.is_some());
        assert!(message.edns.is_none_or(|edns| edns.flags().dnssec_ok));
        let most = edns.map_or(512, |size| usize::from(size.max(512))).min(UDP_ANSWER_MAX);
        assert!(reply.bytes.len() <= most);
    }
}

#[test]
fn invalid_queries_are_refused_or_dropped() {
    let (mut forwarder, now) = (Forwarder::new(7), Instant::now());
    let good = query(9, "a.example", None);
    let mut two = good.clone();
    two.add_query(good.queries[0].clone());
    let mut update = good.clone();
    update.metadata.op_code = OpCode::Update;
    let mut transfer = Message::new(9, MessageType::Query, OpCode::Query);
    transfer.add_query(Question::query(Name::from_ascii("a.example").unwrap(), RecordType::AXFR));
    let mut cut = good.to_vec().unwrap();
    cut.truncate(20);
    let long = [good.to_vec().unwrap(), vec![0; QUERY_MAX]].concat();
    for (bytes, code) in [
        (two.to_vec().unwrap(), ResponseCode::FormErr),
        (update.to_vec().unwrap(), ResponseCode::NotImp),
        (transfer.to_vec().unwrap(), ResponseCode::Refused),
        (cut, ResponseCode::FormErr),
        (long, ResponseCode::FormErr),
    ] {
        forwarder.query(now, USER, client(0), &bytes);
        let [(_, message)] = &replies(&mut forwarder)[..] else { panic!("no reply, {code}") };
        assert_eq!((message.metadata.id, message.metadata.response_code), (9, code));
    }
    let mut response = good.clone();
    response.metadata.message_type = MessageType::Response;
    for bytes in [response.to_vec().unwrap(), vec![], vec![0; 11]] {
        forwarder.query(now, USER, client(0), &bytes);
    }
    assert!(replies(&mut forwarder).is_empty() && !forwarder.wants_stream());
}

#[test]
fn repeated_query_is_sent_once() {
    let (mut forwarder, now) = (Forwarder::new(7), Instant::now());
    for name in ["a.example", "a.example", "b.example", "b.example"] {
        ask(&mut forwarder, now, client(0), &query(5, name, None));
    }
    assert_eq!(sent(&mut forwarder, now).len(), 2, "other questions are other queries");
}

#[test]
fn unsolicited_answers_are_ignored() {
    let (mut forwarder, now) = (Forwarder::new(7), Instant::now());
    ask(&mut forwarder, now, client(0), &query(5, "a.example", None));
    let query_sent = sent(&mut forwarder, now).remove(0);
    let mut other_id = answer(&query_sent, 1);
    other_id[0] ^= 1;
    let other_name = answer(&query(0, "b.example", None).to_vec().unwrap(), 1);
    let other_name = [&query_sent[..2], &other_name[2..]].concat();
    for wrong in [other_id, other_name, query_sent.clone(), vec![], vec![1], vec![0xff; 12]] {
        forwarder.receive(now, &frame(&wrong));
        assert!(replies(&mut forwarder).is_empty());
    }
    // Resolvers may change letter case, and leave the question out of an error.
    let upper: Vec<u8> = answer(&query_sent, 0).iter().map(u8::to_ascii_uppercase).collect();
    let upper = [&query_sent[..2], &upper[2..]].concat();
    forwarder.receive(now, &frame(&upper));
    assert_eq!(replies(&mut forwarder).len(), 1);
    ask(&mut forwarder, now, client(0), &query(6, "a.example", None));
    let id = sent(&mut forwarder, now)[0][..2].to_vec();
    let bare = [&id[..], &[0x80, 5, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    forwarder.receive(now, &frame(&bare));
    let [(_, message)] = &replies(&mut forwarder)[..] else { panic!("no reply") };
    assert_eq!(message.metadata.response_code, ResponseCode::Refused);
}

#[test]
fn pending_queries_are_sent_again_on_the_next_stream() {
    let (mut forwarder, now) = (Forwarder::new(7), Instant::now());
    for number in 0..2 {
        ask(&mut forwarder, now, client(number), &query(number, "a.example", None));
    }
    let first = sent(&mut forwarder, now);
    forwarder.receive(now, &frame(&answer(&first[0], 0))[..9]);
    forwarder.stream_lost();
    assert!(forwarder.wants_stream());
    // The incomplete answer of the old stream does not affect the new one.
    let second = sent(&mut forwarder, now);
    assert_eq!(second, first);
    forwarder.receive(now, &frame(&answer(&second[0], 0)));
    assert_eq!(replies(&mut forwarder)[0].0, client(0));
    // A stream that accepted no byte does not count as an attempt.
    for _ in 0..10 {
        forwarder.stream_lost();
    }
    assert_eq!(sent(&mut forwarder, now).len(), 1);
    forwarder.stream_lost();
    assert_eq!(replies(&mut forwarder).len(), 1, "the third stream was the last");
    assert!(!forwarder.wants_stream());
}

#[test]
fn unanswered_query_gets_servfail_and_silent_stream_is_aborted() {
    let (mut forwarder, begin) = (Forwarder::new(7), Instant::now());
    ask(&mut forwarder, begin, client(0), &query(5, "a.example", None));
    sent(&mut forwarder, begin);
    let later = begin + Duration::from_secs(2);
    ask(&mut forwarder, later, client(1), &query(6, "a.example", None));
    assert_eq!(forwarder.next_timeout(), Some(begin + QUERY_TIMEOUT));
    assert!(!forwarder.on_timeout(begin + QUERY_TIMEOUT));
    let [(to, message)] = &replies(&mut forwarder)[..] else { panic!("no reply") };
    assert_eq!((*to, message.metadata.id), (client(0), 5));
    assert_eq!(message.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(message.queries.len(), 1);
    assert!(!forwarder.on_timeout(later + QUERY_TIMEOUT));
    assert_eq!(replies(&mut forwarder).len(), 1);
    assert!(!forwarder.wants_stream(), "an expired query is not sent");
    assert_eq!(forwarder.next_timeout(), Some(begin + STREAM_PATIENCE));
    assert!(forwarder.on_timeout(begin + STREAM_PATIENCE));
    assert_eq!(forwarder.next_timeout(), None);
}

#[test]
fn table_is_bounded() {
    let (mut forwarder, now) = (Forwarder::new(7), Instant::now());
    let bytes = query(5, "a.example", None).to_vec().unwrap();
    for number in 0..200 {
        forwarder.query(now, USER, client(number), &bytes);
    }
    assert_eq!(forwarder.waiting(), PENDING_USER_MAX);
    assert_eq!(replies(&mut forwarder).len(), 200 - PENDING_USER_MAX);
    for user in 0..20_000 {
        forwarder.query(now, UserId(user), client((user % 60_000) as u16), &bytes);
    }
    assert_eq!(forwarder.waiting(), PENDING_MAX);
    // Without a stream for a minute, the table does not grow.
    for second in 0..60 {
        let now = now + Duration::from_secs(second);
        assert!(!forwarder.on_timeout(now));
        for user in 0..300 {
            forwarder.query(now, UserId(user), client(user as u16), &bytes);
        }
        replies(&mut forwarder);
        assert!(forwarder.waiting() <= PENDING_MAX);
    }
    assert!(!forwarder.on_timeout(now + Duration::from_secs(7200)));
    assert_eq!(forwarder.waiting(), 0);
}

#[test]
fn heaviest_user_loses_its_newest_query_to_another_user() {
    let (mut forwarder, now) = (Forwarder::new(7), Instant::now());
    let bytes = query(1, "a.example", None).to_vec().unwrap();
    let heavy = (PENDING_MAX / PENDING_USER_MAX) as u64;
    for number in 0..PENDING_MAX as u64 {
        let asked = client(number as u16);
        assert_eq!(forwarder.query(now, UserId(number % heavy), asked, &bytes), None);
    }
    let own = UserId(0);
    assert_eq!(forwarder.query(now, own, client(60_000), &bytes), Some(own), "its own quota");
    let refused = forwarder.query(now, UserId(99), client(60_001), &bytes);
    assert!(refused.is_some_and(|user| user.0 < heavy), "{refused:?}");
    assert_eq!((forwarder.waiting(), forwarder.users[&UserId(99)].len()), (PENDING_MAX, 1));
    assert_eq!(forwarder.users[&refused.unwrap()].len(), PENDING_USER_MAX - 1);
}

proptest! {
    #[test]
    fn garbage_never_panics(
        datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..20),
        stream in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        let (mut forwarder, now) = (Forwarder::new(7), Instant::now());
        let mut damaged = query(5, "a.example", Some(1232)).to_vec().unwrap();
        for (at, bits) in flips {
            let at = at.index(damaged.len());
            damaged[at] ^= bits;
        }
        for datagram in datagrams.iter().chain([&damaged]) {
            forwarder.query(now, USER, client(0), datagram);
            for reply in std::iter::from_fn(|| forwarder.poll_reply()) {
                prop_assert!(reply.bytes.len() <= UDP_ANSWER_MAX);
                prop_assert_eq!(&reply.bytes[..2], &datagram[..2]);
                prop_assert!(reply.bytes[2] & 0x80 != 0, "a response");
            }
        }
        let taken = sent(&mut forwarder, now);
        prop_assert_eq!(taken.len(), forwarder.waiting());
        for bytes in &stream {
            forwarder.receive(now, bytes);
            prop_assert!(forwarder.input.len() <= 2 + 65535);
        }
        forwarder.stream_lost();
        let _ = forwarder.on_timeout(now + QUERY_TIMEOUT);
        prop_assert_eq!(forwarder.waiting(), 0);
    }
}
