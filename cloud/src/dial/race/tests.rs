//! The race in virtual time: a script of inputs, and every step with its moment.

use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn address(n: u8) -> SocketAddr {
    SocketAddr::from(([9, 0, 0, n], 443))
}

fn refused(n: u8) -> DialError {
    DialError::Refused(address(n))
}

fn unreachable(n: u8) -> DialError {
    DialError::Unreachable(address(n), "no route".into())
}

/// How a server behaves towards one attempt.
#[derive(Clone)]
enum Server {
    Accepts(u64),
    Fails(u64, DialError),
    Silent,
}
use Server::{Accepts, Fails, Silent};

/// Runs a race against servers, one an address; returns the steps with their times in ms.
fn run(servers: &[Server]) -> Vec<(u64, Step)> {
    let start = Instant::now();
    let order = (0..servers.len()).map(|i| address(u8::try_from(i).unwrap())).collect();
    let mut race = Race::new(start, start, TIMEOUT, order);
    let mut due: Vec<(Instant, Attempt)> = Vec::new();
    let (mut now, mut log) = (start, Vec::new());
    loop {
        while let Some(step) = race.poll() {
            match &step {
                Step::Connect(attempt, to) => {
                    assert_eq!(*to, address(u8::try_from(attempt.0).unwrap()), "out of order");
                    match &servers[attempt.0] {
                        Accepts(after) | Fails(after, _) => due.push((now + ms(*after), *attempt)),
                        Silent => {}
                    }
                }
                Step::Cancel(attempt) => due.retain(|(_, other)| other != attempt),
                Step::Won(_) | Step::Lost(_) => {}
            }
            log.push((u64::try_from((now - start).as_millis()).unwrap(), step));
        }
        due.sort_by_key(|(at, attempt)| (*at, attempt.0));
        let Some(timeout) = race.next_timeout() else {
            assert!(matches!(log.last(), Some((_, Step::Won(_) | Step::Lost(_)))), "{log:?}");
            return log;
        };
        match due.first().copied() {
            Some((at, attempt)) if at <= timeout => {
                due.remove(0);
                now = at;
                match servers[attempt.0].clone() {
                    Accepts(_) => race.connected(attempt),
                    Fails(_, error) => race.failed(now, attempt, error),
                    Silent => unreachable!("a silent server has no due time"),
                }
            }
            _ => {
                now = timeout;
                race.on_timeout(now);
            }
        }
    }
}

fn connect(at: u64, n: u8) -> (u64, Step) {
    (at, Step::Connect(Attempt(n.into()), address(n)))
}

fn cancel(at: u64, n: usize) -> (u64, Step) {
    (at, Step::Cancel(Attempt(n)))
}

fn won(at: u64, n: usize) -> (u64, Step) {
    (at, Step::Won(Attempt(n)))
}

fn lost(at: u64, error: DialError) -> (u64, Step) {
    (at, Step::Lost(error))
}

#[test]
fn quick_first_address_wins_alone() {
    assert_eq!(run(&[Accepts(249), Accepts(1)]), [connect(0, 0), won(249, 0)]);
}

#[test]
fn second_address_joins_after_the_delay_and_first_success_wins() {
    let steps = run(&[Silent, Accepts(40)]);
    assert_eq!(steps, [connect(0, 0), connect(250, 1), cancel(290, 0), won(290, 1)]);
    let steps = run(&[Accepts(270), Accepts(40)]);
    assert_eq!(steps, [connect(0, 0), connect(250, 1), cancel(270, 1), won(270, 0)]);
    let steps = run(&[Silent, Silent, Accepts(10)]);
    let expected = [
        connect(0, 0),
        connect(250, 1),
        connect(500, 2),
        cancel(510, 0),
        cancel(510, 1),
        won(510, 2),
    ];
    assert_eq!(steps, expected);
}

#[test]
fn failed_attempt_starts_the_next_at_once() {
    let steps = run(&[Fails(30, unreachable(0)), Accepts(5)]);
    assert_eq!(steps, [connect(0, 0), connect(30, 1), won(35, 1)]);
    // The delay counts from the latest attempt.
    let steps = run(&[Fails(30, refused(0)), Silent, Accepts(5)]);
    let expected = [connect(0, 0), connect(30, 1), connect(280, 2), cancel(285, 1), won(285, 2)];
    assert_eq!(steps, expected);
    // Also when another attempt is still under way.
    let steps = run(&[Silent, Fails(20, refused(1)), Accepts(5)]);
    let expected = [connect(0, 0), connect(250, 1), connect(270, 2), cancel(275, 0), won(275, 2)];
    assert_eq!(steps, expected);
}

#[test]
fn most_specific_error_is_reported() {
    let timed_out = || DialError::TimedOut(TIMEOUT);
    let overload = || DialError::Overload("no descriptor".into());
    let cases: Vec<(Vec<Server>, u64, DialError)> = vec![
        (vec![Fails(3, refused(0))], 3, refused(0)),
        (vec![Fails(3, unreachable(0)), Fails(4, refused(1))], 7, refused(1)),
        (vec![Fails(3, refused(0)), Fails(4, unreachable(1))], 7, refused(0)),
        (vec![Fails(3, unreachable(0)), Fails(4, unreachable(1))], 7, unreachable(0)),
        (vec![Fails(3, overload()), Fails(4, unreachable(1))], 7, overload()),
        (vec![Fails(3, unreachable(0)), Silent], 10_000, timed_out()),
        (vec![Fails(3, refused(0)), Silent], 10_000, refused(0)),
        (vec![Silent], 10_000, timed_out()),
    ];
    for (servers, at, error) in cases {
        assert_eq!(run(&servers).last(), Some(&lost(at, error)));
    }
}

#[test]
fn deadline_cancels_all_attempts() {
    let steps = run(&[Silent, Silent]);
    let end = DialError::TimedOut(TIMEOUT);
    let expected =
        [connect(0, 0), connect(250, 1), cancel(10_000, 0), cancel(10_000, 1), lost(10_000, end)];
    assert_eq!(steps, expected);
}

#[test]
fn time_spent_resolving_counts() {
    let begun = Instant::now();
    let now = begun + ms(9_900);
    let mut race = Race::new(now, begun, TIMEOUT, vec![address(0), address(1)]);
    assert_eq!(race.poll(), Some(Step::Connect(Attempt(0), address(0))));
    assert_eq!(race.next_timeout(), Some(begun + TIMEOUT));
    race.on_timeout(begun + TIMEOUT);
    assert_eq!(race.poll(), Some(Step::Cancel(Attempt(0))));
    assert_eq!(race.poll(), Some(Step::Lost(DialError::TimedOut(TIMEOUT))));
}

#[test]
fn inputs_after_the_end_are_ignored() {
    let start = Instant::now();
    let mut race = Race::new(start, start, TIMEOUT, vec![address(0), address(1)]);
    assert!(race.poll().is_some());
    race.connected(Attempt(7));
    assert_eq!(race.poll(), None, "an attempt that never was");
    race.connected(Attempt(0));
    assert_eq!(race.poll(), Some(Step::Won(Attempt(0))));
    race.failed(start, Attempt(0), refused(0));
    race.connected(Attempt(0));
    race.on_timeout(start + TIMEOUT);
    assert_eq!((race.poll(), race.next_timeout()), (None, None));
    let mut empty = Race::new(start, start, TIMEOUT, Vec::new());
    assert_eq!(empty.poll(), Some(Step::Lost(DialError::NoFamily)));
}

#[test]
fn unpolled_connect_is_withdrawn() {
    let start = Instant::now();
    let mut race = Race::new(start, start, TIMEOUT, vec![address(0), address(1)]);
    assert!(race.poll().is_some());
    race.on_timeout(start + ATTEMPT_DELAY);
    race.connected(Attempt(0));
    assert_eq!(race.poll(), Some(Step::Won(Attempt(0))), "the second attempt was still a wish");
    assert_eq!(race.poll(), None);
}

#[test]
fn families_take_turns_and_ipv6_leads() {
    let access = AccessList::new(&[], &[], &[]);
    let ips =
        |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|t| t.parse().unwrap()).collect() };
    let order = |addresses: &[&str], families| {
        candidates(&ips(addresses), 1, families, &access)
            .map(|list| list.iter().map(|a| a.ip().to_string()).collect::<Vec<_>>().join(" "))
    };
    let given = ["9.0.0.1", "9.0.0.2", "9.0.0.3", "2003::1", "2003::2"];
    let v4 = Families { v4: true, v6: false };
    let v6 = Families { v4: false, v6: true };
    let all = "2003::1 9.0.0.1 2003::2 9.0.0.2 9.0.0.3";
    assert_eq!(order(&given, Families::BOTH).unwrap(), all);
    assert_eq!(order(&given, v4).unwrap(), "9.0.0.1 9.0.0.2 9.0.0.3");
    assert_eq!(order(&given, v6).unwrap(), "2003::1 2003::2");
    assert_eq!(order(&given[..3], v6), Err(DialError::NoFamily));
    // A mapped address is IPv4, in every respect.
    assert_eq!(order(&["::ffff:9.0.0.1"], v4).unwrap(), "9.0.0.1");
    assert_eq!(order(&["::ffff:9.0.0.1"], v6), Err(DialError::NoFamily));
}

#[test]
fn only_permitted_addresses_are_candidates() {
    let access = AccessList::new(&[], &[], &[25]);
    let ips: Vec<IpAddr> =
        ["127.0.0.1", "9.0.0.1", "::1"].iter().map(|t| t.parse().unwrap()).collect();
    let open = candidates(&ips, 80, Families::BOTH, &access).unwrap();
    assert_eq!(open, [SocketAddr::from(([9, 0, 0, 1], 80))]);
    let forbidden = candidates(&ips[..1], 80, Families::BOTH, &access);
    assert!(matches!(forbidden, Err(DialError::Forbidden(_))), "{forbidden:?}");
    let forbidden = candidates(&ips, 25, Families::BOTH, &access);
    assert!(matches!(forbidden, Err(DialError::Forbidden(_))), "{forbidden:?}");
}
