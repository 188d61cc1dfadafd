//! Both halves behave like the kernel's.

use std::rc::Rc;
use std::time::{Duration, Instant};

use polyrail_emulator::trials::{Sample, Trial, trials};
use polyrail_model::Unit;

use super::receiver::Receiver;
use super::*;
use crate::congestion::Algorithm;

fn segment() -> Rc<Segment> {
    let content = Content::Frames(Unit::Control, vec![0; SEGMENT]);
    let message = Rc::new(Message { number: 0, after: 0, epoch: 0, content });
    Rc::new(Segment { message, range: 0..SEGMENT })
}

#[test]
fn acknowledgements_are_immediate_at_first_and_then_for_every_second_segment() {
    let (now, mut receiver) = (Instant::now(), Receiver::new(true));
    let mut accept = |serial| {
        let kind = receiver.accept(now, serial, serial + 1, segment(), &mut Vec::new());
        (kind.is_some(), receiver.next_timeout())
    };
    assert!((0..16).all(|serial| accept(serial) == (true, None)));
    let late = now + Duration::from_millis(40);
    assert_eq!(accept(16), (false, Some(late)));
    assert_eq!(accept(17), (true, None));
    assert_eq!(accept(19), (true, None), "a segment is missing");
    assert_eq!(accept(18), (true, None));
    assert_eq!(accept(20), (false, Some(late)));
    let kind = receiver.on_timeout(late);
    assert!(matches!(kind, Some(PacketKind::Ack { serial: 20, cumulative: 21, .. })), "{kind:?}");
}

#[test]
fn quic_acknowledges_each_datagram_at_once() {
    let (now, mut receiver) = (Instant::now(), Receiver::new(false));
    for serial in 0..100 {
        let kind = receiver.accept(now, serial, serial + 1, segment(), &mut Vec::new());
        let kind = kind.unwrap();
        assert!(matches!(kind, PacketKind::Ack { cumulative, .. } if cumulative == serial + 1));
        assert_eq!(receiver.next_timeout(), None);
    }
}

#[test]
fn acknowledgement_repeats_the_segments_before_it() {
    let (now, mut receiver) = (Instant::now(), Receiver::new(true));
    let mut accept =
        |serial, order| receiver.accept(now, serial, order, segment(), &mut Vec::new()).unwrap();
    accept(0, 1);
    accept(2, 3);
    let third = accept(3, 4);
    assert!(matches!(third, PacketKind::Ack { serial: 3, from: 2, order: 4, cumulative: 1, .. }));
    // A duplicate echoes the order of the new segment.
    let copy = accept(0, 9);
    assert!(matches!(copy, PacketKind::Ack { serial: 0, order: 4, cumulative: 1, .. }), "{copy:?}");
}

fn trial(name: &str) -> Trial {
    trials().unwrap().into_iter().find(|trial| trial.name == name).unwrap()
}

fn at(samples: &[Sample], seconds: f64) -> Sample {
    *samples.iter().rfind(|sample| sample.at_s <= seconds + 1e-6).unwrap()
}

#[test]
fn held_queue_undoes_spurious_timeouts() {
    for algorithm in [Algorithm::Cubic, Algorithm::Bbr, Algorithm::Bbr2] {
        let samples = play(&trial("dark_3s_hold"), algorithm, 1);
        let (dark, after) = (at(&samples, 10.9), at(&samples, 12.5));
        assert_eq!((dark.backoff, after.backoff), (3, 0), "{algorithm:?}");
        assert!(after.resent - at(&samples, 7.9).resent < 30, "{algorithm:?}: {after:?}");
        assert!(after.window * 2 > at(&samples, 7.9).window, "{algorithm:?}: {after:?}");
    }
}

#[test]
fn lost_queue_is_retransmitted_by_doubling_timeouts() {
    for algorithm in [Algorithm::Cubic, Algorithm::Bbr, Algorithm::Bbr2] {
        let samples = play(&trial("dark_8s_drop"), algorithm, 1);
        // QUIC's probes are two.
        let probes = if algorithm == Algorithm::Bbr2 { 2 } else { 1 };
        assert_eq!(at(&samples, 15.9).window, probes * SEGMENT as u64, "{algorithm:?}");
        let timeouts: Vec<f64> = (1..=4)
            .map(|backoff| samples.iter().find(|s| s.backoff == backoff).unwrap().at_s)
            .collect();
        let gaps: Vec<f64> = timeouts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.windows(2).all(|pair| (1.7..2.4).contains(&(pair[1] / pair[0]))), "{gaps:?}");
        let end = samples.last().unwrap();
        assert!(end.delivered > at(&samples, 16.0).delivered + 10_000_000, "{algorithm:?}");
    }
}
