//! The sending half with short texts.

use super::*;
use crate::limits::UNITS_MAX;

fn base() -> Instant {
    #[allow(clippy::disallowed_methods)] // a base for the clock of these tests
    Instant::now()
}

fn half(opens: bool, text: &[u8]) -> SendHalf {
    let mut half = SendHalf::new(opens, 1_000);
    half.write(text);
    half
}

/// Sends the next piece, at most `most` bytes, on a slot.
fn send(half: &mut SendHalf, most: u64, slot: usize) -> Option<(u64, bool, Vec<u8>, bool)> {
    let piece = half.piece(u64::MAX >> 8)?;
    let content = half.content(&piece, most);
    let (end, out) = (content.end, (piece.start, content.open, content.data.to_vec(), content.fin));
    half.sent(base(), &piece, end, PathSet::only(slot), 0, 0);
    assert_eq!(half.runs.waiting, queued(half));
    Some(out)
}

/// The sum that `waiting` keeps.
fn queued(half: &SendHalf) -> u64 {
    half.runs.again.iter().map(|start| half.runs.runs[start].end - start).sum()
}

#[test]
fn data_sent_ahead_is_not_remaining_but_reinjections_are() {
    let mut half = half(false, b"abcdefghij");
    assert_eq!(half.remaining(), 10);
    assert!(send_ahead(&mut half, 4, 2).is_some());
    assert_eq!((half.remaining(), half.unsent()), (8, 8), "two of ten are in flight");
    send(&mut half, 3, 0);
    assert_eq!(half.runs.give_up(0, 6, 0, false), 3);
    assert_eq!((half.remaining(), half.unsent()), (8, 5), "three of them are reinjected");
    send(&mut half, 2, 1);
    assert_eq!((half.remaining(), half.runs.waiting), (6, 2));
    let last = std::iter::once(2..3).collect::<Vec<_>>();
    assert!(half.acknowledge(0, &last, |_, _, _| {}), "a late arrival");
    assert_eq!((half.remaining(), half.runs.waiting), (5, 1));
    assert_eq!(half.runs.drop_gaps(), 1);
    assert_eq!((half.remaining(), half.runs.waiting), (4, queued(&half)));
    half.runs.give_up(4, 6, 1, false);
    half.truncate(5, |_, _| {});
    assert_eq!((half.runs.waiting, queued(&half)), (1, 1));
}

#[test]
fn open_comes_first_and_the_end_last() {
    let mut half = half(true, b"abcde");
    half.finish();
    assert_eq!(send(&mut half, 3, 0), Some((0, true, b"abc".to_vec(), false)));
    assert_eq!(send(&mut half, 3, 0), Some((4, false, b"de".to_vec(), true)));
    assert_eq!(send(&mut half, 3, 0), None);
    assert_eq!(half.next, 7);
    assert!(half.acknowledge(7, &[], |_, _, _| {}));
    assert!(half.is_done());
}

#[test]
fn open_and_end_are_sent_without_data() {
    let mut half = half(true, b"");
    assert_eq!(send(&mut half, 9, 0), Some((0, true, vec![], false)));
    assert_eq!(send(&mut half, 9, 0), None);
    half.finish();
    assert_eq!(send(&mut half, 9, 0), Some((1, false, vec![], true)));
}

#[test]
fn window_limits_data_but_not_the_end() {
    let mut half = half(false, b"abcdef");
    half.limit = 4;
    half.finish();
    assert_eq!(send(&mut half, 9, 0), Some((0, false, b"abcd".to_vec(), false)));
    assert_eq!(send(&mut half, 9, 0), None);
    half.limit = 6;
    assert_eq!(send(&mut half, 9, 0), Some((4, false, b"ef".to_vec(), true)));
}

#[test]
fn given_up_run_is_reinjected_unless_another_path_carries_it() {
    let mut half = half(false, b"abcdef");
    send(&mut half, 3, 0);
    let piece = half.piece(99).unwrap();
    let mut both = PathSet::only(0);
    both.insert(1);
    half.sent(base(), &piece, 6, both, 0, 0);
    assert_eq!(half.runs.give_up(0, 6, 0, false), 6);
    let again = half.piece(99).unwrap();
    assert_eq!((again.start, again.end, again.again), (0, 3, true));
    assert!(again.carried.contains(0));
    assert_eq!(send(&mut half, 2, 1), Some((0, false, b"ab".to_vec(), false)));
    assert_eq!(send(&mut half, 2, 1), Some((2, false, b"c".to_vec(), false)));
    assert_eq!(send(&mut half, 2, 1), None);
}

#[test]
fn acknowledgement_of_a_part_splits_its_run() {
    let mut half = half(false, b"abcdefgh");
    send(&mut half, 4, 0);
    send(&mut half, 4, 1);
    let (mut settled, ranges) = (Vec::new(), std::iter::once(5..8).collect::<Vec<_>>());
    assert!(half.acknowledge(2, &ranges, |_, n, live| settled.push((n, live.iter().next()))));
    assert_eq!(settled, [(2, Some(0)), (3, Some(1))]);
    assert_eq!(half.held(), 6);
    half.runs.give_up(0, 8, 0, true);
    assert_eq!(send(&mut half, 9, 1), Some((2, false, b"cd".to_vec(), false)));
    assert!(!half.acknowledge(9, &[], |_, _, _| {}), "never sent");
    assert!(half.acknowledge(8, &[], |_, _, _| {}));
    assert_eq!((half.held(), half.runs.len(), half.runs.again.len()), (0, 0, 0));
}

/// The tags of the spare units, with the slots that carry them.
fn spare(half: &mut SendHalf) -> Vec<(u64, Vec<usize>)> {
    half.runs.take_spare().into_iter().map(|(tag, on)| (tag, on.iter().collect())).collect()
}

/// Sends the next piece, at most `most` bytes, on a slot in a unit with this tag.
fn send_as(half: &mut SendHalf, tag: u64, most: u64, slot: usize) {
    let piece = half.piece(u64::MAX >> 8).unwrap();
    let end = half.content(&piece, most).end;
    half.sent(base(), &piece, end, PathSet::only(slot), tag, 0);
}

#[test]
fn unit_is_spare_when_all_of_it_has_arrived_otherwise() {
    let mut half = half(false, b"abcdefgh");
    send_as(&mut half, 1, 8, 0);
    half.runs.give_up(0, 8, 0, false);
    send_as(&mut half, 2, 3, 1);
    send_as(&mut half, 3, 5, 1);
    assert!(half.acknowledge(2, &[], |_, _, _| {}));
    assert_eq!(spare(&mut half), [], "the rest of unit 2 is out");
    assert!(half.acknowledge(3, &[], |_, _, _| {}));
    assert_eq!(spare(&mut half), [(2, vec![1])], "and the rest of unit 1");
    assert!(half.acknowledge(8, &[], |_, _, _| {}));
    assert_eq!(spare(&mut half), [(1, vec![0]), (3, vec![1])]);
    assert_eq!(spare(&mut half), [], "once");
}

#[test]
fn unit_on_one_path_is_spare_only_after_truncation() {
    let mut half = half(false, b"abcdefgh");
    send_as(&mut half, 1, 2, 0);
    send_as(&mut half, 2, 4, 1);
    send_as(&mut half, 3, 2, 0);
    assert!(half.acknowledge(2, &[], |_, _, _| {}));
    assert_eq!(spare(&mut half), []);
    assert_eq!(half.runs.all_units().len(), 2);
    half.truncate(4, |_, _| {});
    assert_eq!(spare(&mut half), [(3, vec![0])], "a part of unit 2 is still wanted");
    half.truncate(0, |_, _| {});
    assert_eq!(spare(&mut half), [(2, vec![1])]);
}

#[test]
fn lost_path_carries_no_spare_unit() {
    let mut half = half(false, b"abcd");
    send_as(&mut half, 1, 4, 0);
    half.runs.give_up(0, 4, 0, true);
    send_as(&mut half, 2, 4, 1);
    half.runs.give_up(0, 4, 1, false);
    send_as(&mut half, 3, 4, 0);
    assert!(half.acknowledge(4, &[], |_, _, _| {}));
    let of_slot_0: Vec<u64> = spare(&mut half)
        .into_iter()
        .filter(|(_, on)| on.contains(&0))
        .map(|(tag, _)| tag)
        .collect();
    assert_eq!(of_slot_0, [3], "slot 0 is another path by now");
    assert_eq!(half.runs.units_kept(), 0);
}

#[test]
fn units_of_a_run_are_bounded() {
    let mut half = half(false, b"abcd");
    for tag in 0..100 {
        let slot = (tag % 2) as usize;
        send_as(&mut half, tag, 4, slot);
        half.runs.give_up(0, 4, slot, false);
    }
    assert_eq!(half.runs.units_kept(), UNITS_MAX);
    assert!(half.acknowledge(4, &[], |_, _, _| {}));
    let tags: Vec<u64> = spare(&mut half).into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(tags, (100 - UNITS_MAX as u64..100).collect::<Vec<_>>());
}

#[test]
fn peer_that_splits_runs_without_end_is_rejected() {
    let mut half = half(false, &vec![7; 65_536]);
    half.limit = 1 << 20;
    while send(&mut half, 15_400, 0).is_some() {}
    let cut = |n: u64| (n * 64..n * 64 + 64).step_by(2).map(|at| at..at + 1).collect::<Vec<_>>();
    let mut taken = 0;
    while taken < 1_024 && half.acknowledge(0, &cut(taken), |_, _, _| {}) {
        taken += 1;
    }
    assert!(half.runs.len() < 5 * RUNS_MAX, "{} runs", half.runs.len());
    assert!(taken < 1_024, "never refused");
}

#[test]
fn buffer_that_shrinks_allocates_at_most_twice_its_bytes_and_keeps_them() {
    let mut half = half(false, b"");
    half.limit = 1 << 30;
    let mut seed = 1_u64;
    for turn in 0..2_000_u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let data: Vec<u8> = (0..(seed >> 33) % 9_000).map(|at| (half.written + at) as u8).collect();
        half.write(&data);
        while let Some((start, _, data, _)) = send(&mut half, u64::MAX >> 8, 0) {
            assert!((start..).zip(&data).all(|(at, byte)| at as u8 == *byte));
        }
        // The peer acknowledges in bursts, and all but the last bytes.
        if turn % 7 == 0 {
            let most = half.written.saturating_sub(10 + seed % 999);
            assert!(half.acknowledge(most, &[], |_, _, _| {}));
            half.shrink();
        }
        let (allocated, held) = (half.allocated(), half.held());
        assert!(allocated <= (IDLE_CAPACITY as u64).max(2 * held), "{allocated} for {held} bytes");
    }
}

#[test]
fn truncation_keeps_earlier_data() {
    let mut half = half(false, b"abcdefgh");
    half.finish();
    send(&mut half, 4, 0);
    half.truncate(6, |_, _| {});
    assert_eq!(send(&mut half, 9, 0), Some((4, false, b"ef".to_vec(), false)));
    assert_eq!(send(&mut half, 9, 0), None);
    half.runs.give_up(0, 9, 0, false);
    half.truncate(2, |_, _| {});
    assert_eq!(send(&mut half, 9, 0), Some((0, false, b"ab".to_vec(), false)));
    half.truncate(0, |_, _| {});
    assert_eq!((half.held(), send(&mut half, 9, 0)), (0, None));
}
/// Sends data `ahead` beyond the next piece.
fn send_ahead(half: &mut SendHalf, ahead: u64, most: u64) -> Option<(u64, Vec<u8>)> {
    let piece = half.piece(u64::MAX >> 8)?;
    let piece = half.further(&piece, ahead, u64::MAX >> 8)?;
    let content = half.content(&piece, most);
    let (end, data) = (content.end, content.data.to_vec());
    half.sent(base(), &piece, end, PathSet::only(1), 9, 0);
    Some((piece.start, data))
}

#[test]
fn skipped_data_is_sent_in_its_turn() {
    let mut half = half(false, b"abcdefghij");
    assert_eq!(send_ahead(&mut half, 4, 2), Some((4, b"ef".to_vec())));
    assert_eq!((half.unsent(), half.runs.gaps, half.next), (8, 4, 6));
    assert_eq!(send_ahead(&mut half, 4, 1), Some((6, b"g".to_vec())), "as much as there is");
    assert_eq!(send_ahead(&mut half, 2, 1), Some((2, b"c".to_vec())), "within the gap");
    assert_eq!((half.unsent(), half.runs.gaps), (6, 3));
    assert_eq!(send_ahead(&mut half, 10, 1), None, "there is no more");
    let gap = half.piece(0).unwrap();
    assert_eq!((gap.start, gap.end, gap.again, gap.sent_at), (0, 2, false, None));
    assert_eq!(send(&mut half, 9, 0), Some((0, false, b"ab".to_vec(), false)));
    assert_eq!(send(&mut half, 9, 0), Some((3, false, b"d".to_vec(), false)));
    assert_eq!((half.unsent(), half.runs.gaps), (3, 0));
    assert_eq!(send(&mut half, 9, 0), Some((7, false, b"hij".to_vec(), false)));
    assert!(half.acknowledge(10, &[], |_, _, _| {}));
    assert_eq!((half.held(), half.runs.len(), half.runs.again.len()), (0, 0, 0));
}

#[test]
fn skipped_data_cannot_be_acknowledged_but_truncated() {
    let mut half = half(false, b"abcdefghij");
    send(&mut half, 1, 0);
    assert!(send_ahead(&mut half, 3, 2).is_some());
    let ranges = std::iter::once(4..6).collect::<Vec<_>>();
    assert!(!half.acknowledge(2, &[], |_, _, _| {}), "never sent");
    assert!(!half.acknowledge(6, &[], |_, _, _| {}));
    assert!(half.acknowledge(1, &ranges, |_, _, _| {}));
    half.truncate(3, |_, live| assert_eq!(live, PathSet::EMPTY));
    assert_eq!((half.unsent(), half.runs.gaps), (2, 2));
    assert_eq!((half.runs.drop_gaps(), half.runs.again.len(), half.runs.len()), (2, 0, 0));
}

#[test]
fn open_is_not_skipped_and_gaps_are_bounded() {
    let mut half = half(true, b"abc");
    assert_eq!(send_ahead(&mut half, 1, 1), None);
    let mut half = SendHalf::new(false, 1 << 30);
    half.write(&vec![7; AHEAD_MAX as usize + 9]);
    assert_eq!(send_ahead(&mut half, AHEAD_MAX + 1, 1), None);
    assert_eq!(send_ahead(&mut half, AHEAD_MAX, 1).unwrap().0, AHEAD_MAX);
    assert_eq!(half.runs.gaps, AHEAD_MAX);
    half.finish();
    assert_eq!(send_ahead(&mut half, AHEAD_MAX, 99).unwrap().1.len(), 8, "with its end");
    assert_eq!(half.next, AHEAD_MAX + 10);
}
