//! The resolver with lookups of the test's own, and once with the system's.

use std::time::Duration;

use super::*;

struct Bench {
    poll: mio::Poll,
    resolver: Resolver,
}

impl Bench {
    fn new<F>(lookup: impl Fn(HostName) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<Vec<IpAddr>, ResolveError>> + Send + 'static,
    {
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
        Self { poll, resolver: Resolver::with_lookup(waker, lookup).unwrap() }
    }

    /// The next answer, found only through the waker; a lost wake-up fails the test.
    fn answer(&mut self) -> Resolution {
        let mut events = mio::Events::with_capacity(4);
        for _ in 0..2 {
            if let Some(answer) = self.resolver.poll() {
                return answer;
            }
            self.poll.poll(&mut events, Some(Duration::from_secs(20))).unwrap();
        }
        self.resolver.poll().expect("woken without an answer")
    }
}

/// Answers at once, except for names that begin with "silent".
async fn some_silent(name: HostName) -> Result<Vec<IpAddr>, ResolveError> {
    match name.as_str() {
        silent if silent.starts_with("silent") => std::future::pending().await,
        "one.example" => Ok(addresses(1)),
        _ => Err(ResolveError::NotFound("no such name".into())),
    }
}

fn name(text: &str) -> HostName {
    HostName::new(text).unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn addresses(count: u8) -> Vec<IpAddr> {
    let v4 = (0..count).map(|i| IpAddr::from([9, 0, 0, i]));
    let v6 = (0..count).map(|i| IpAddr::from([0x2003, 0, 0, 0, 0, 0, 0, u16::from(i)]));
    v4.chain(v6).collect()
}

#[test]
fn answers_wake_the_poll() {
    let mut bench = Bench::new(some_silent);
    let good = bench.resolver.submit(name("one.example"), soon()).unwrap();
    let answer = bench.answer();
    assert_eq!((answer.query, answer.result), (good, Ok(addresses(1))));
    let bad = bench.resolver.submit(name("two.example"), soon()).unwrap();
    let answer = bench.answer();
    assert_eq!(answer.query, bad);
    assert!(matches!(answer.result, Err(ResolveError::NotFound(_))), "{:?}", answer.result);
}

#[test]
fn long_answers_are_truncated_in_each_family() {
    let cap = u8::try_from(ADDRESSES_PER_FAMILY_MAX).unwrap();
    let mut long = addresses(cap + 5);
    long.extend(addresses(2));
    assert_eq!(
        bounded(long).unwrap(),
        addresses(cap + 5).into_iter().filter(keep(cap)).collect::<Vec<_>>()
    );
    assert!(matches!(bounded(Vec::new()), Err(ResolveError::NotFound(_))));
}

fn keep(cap: u8) -> impl Fn(&IpAddr) -> bool {
    move |address| match address {
        IpAddr::V4(v4) => v4.octets()[3] < cap,
        IpAddr::V6(v6) => v6.octets()[15] < cap,
    }
}

#[test]
fn silent_name_servers_delay_no_other_lookup() {
    let mut bench = Bench::new(some_silent);
    for _ in 1..LOOKUPS_MAX {
        bench.resolver.submit(name("silent.example"), soon()).unwrap();
    }
    let query = bench.resolver.submit(name("one.example"), soon()).unwrap();
    let answer = bench.answer();
    assert_eq!((answer.query, answer.result), (query, Ok(addresses(1))));
}

#[test]
fn lookups_are_bounded_and_cancelled_ones_leave_their_place() {
    let mut bench = Bench::new(some_silent);
    let submit = |bench: &mut Bench| bench.resolver.submit(name("silent.example"), soon());
    let queries: Vec<QueryId> = (0..LOOKUPS_MAX).map(|_| submit(&mut bench).unwrap()).collect();
    assert_eq!(submit(&mut bench), Err(ResolveError::Overload));
    assert_eq!(bench.resolver.in_progress(), LOOKUPS_MAX);
    bench.resolver.cancel(queries[7]);
    bench.resolver.cancel(queries[7]);
    let query = bench.resolver.submit(name("one.example"), soon()).unwrap();
    assert_eq!(bench.answer().query, query);
}

#[test]
fn lookup_ends_at_its_deadline() {
    let mut bench = Bench::new(some_silent);
    let deadline = Instant::now() + Duration::from_millis(20);
    let query = bench.resolver.submit(name("silent.example"), deadline).unwrap();
    let answer = bench.answer();
    assert!(Instant::now() >= deadline && answer.query == query);
    assert!(matches!(answer.result, Err(ResolveError::Temporary(_))), "{:?}", answer.result);
    assert_eq!(bench.resolver.in_progress(), 0);
}

#[test]
fn system_resolver_knows_localhost() {
    let poll = mio::Poll::new().unwrap();
    let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
    let mut bench = Bench { poll, resolver: Resolver::start(waker).unwrap() };
    bench.resolver.submit(name("localhost"), soon()).unwrap();
    let found = bench.answer().result.unwrap();
    assert!(found.iter().all(IpAddr::is_loopback), "{found:?}");
}
