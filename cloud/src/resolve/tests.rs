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
fn requests_to_a_slow_thread_are_bounded() {
    let (release, blocked) = channel::<()>();
    let mut bench = Bench::new(move |name: HostName| {
        let _ = blocked.recv();
        some_silent(name)
    });
    let mut submit = || bench.resolver.submit(name("silent.example"), soon());
    let taken = (0..2 * REQUESTS_MAX).take_while(|_| submit().is_ok()).count();
    // The thread has one of them.
    assert!((REQUESTS_MAX..=REQUESTS_MAX + 1).contains(&taken), "{taken}");
    assert_eq!(submit(), Err(ResolveError::Overload));
    drop(release);
}

#[test]
fn cancelled_lookups_have_no_answer() {
    let mut bench = Bench::new(some_silent);
    let cancelled = bench.resolver.submit(name("silent.example"), soon()).unwrap();
    bench.resolver.cancel(cancelled);
    bench.resolver.cancel(cancelled);
    let query = bench.resolver.submit(name("one.example"), soon()).unwrap();
    assert_eq!(bench.answer().query, query);
    assert!(bench.resolver.open.is_empty());
}

#[test]
fn panic_of_a_lookup_fails_this_lookup_only() {
    let mut bench = Bench::new(|name: HostName| async move {
        assert_ne!(name.as_str(), "bad.example");
        some_silent(name).await
    });
    let bad = bench.resolver.submit(name("bad.example"), soon()).unwrap();
    let answer = bench.answer();
    assert_eq!(answer.query, bad);
    assert!(matches!(answer.result, Err(ResolveError::Temporary(_))), "{:?}", answer.result);
    let good = bench.resolver.submit(name("one.example"), soon()).unwrap();
    assert_eq!(bench.answer().query, good);
}

#[test]
fn end_of_the_thread_ends_the_process() {
    const CHILD: &str = "POLYRAIL_TEST_RESOLVER_PANICS";
    if std::env::var_os(CHILD).is_some() {
        // The panic is in the thread, not in a lookup.
        let panics = |_: HostName| -> std::future::Ready<_> { panic!("for the test") };
        let mut bench = Bench::new(panics);
        bench.resolver.submit(name("one.example"), soon()).unwrap();
        std::thread::sleep(Duration::from_secs(20));
        return;
    }
    let this = std::env::current_exe().unwrap();
    let mut child = std::process::Command::new(this);
    child.args(["--exact", "resolve::tests::end_of_the_thread_ends_the_process"]).env(CHILD, "1");
    let status = child.output().unwrap().status;
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGABRT));
}

#[test]
fn lookup_ends_at_its_deadline() {
    let mut bench = Bench::new(some_silent);
    let deadline = Instant::now() + Duration::from_millis(20);
    let query = bench.resolver.submit(name("silent.example"), deadline).unwrap();
    let answer = bench.answer();
    assert!(Instant::now() >= deadline && answer.query == query);
    assert!(matches!(answer.result, Err(ResolveError::Temporary(_))), "{:?}", answer.result);
    assert!(bench.resolver.open.is_empty());
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
