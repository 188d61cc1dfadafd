//! The pool with a resolver of the test's own, and once with the system's.

use std::sync::Condvar;
use std::time::Duration;

use super::*;

/// Lookups that wait until the test opens the gate.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn wait(&self) {
        let open = self.open.lock().unwrap();
        drop(self.changed.wait_while(open, |open| !*open).unwrap());
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

struct Bench {
    poll: mio::Poll,
    resolver: Resolver,
}

impl Bench {
    fn new(lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Self {
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
        Self { poll, resolver: Resolver::with_lookup(waker, Arc::new(lookup)).unwrap() }
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

fn name(text: &str) -> HostName {
    HostName::new(text).unwrap()
}

fn addresses(count: u8) -> Vec<IpAddr> {
    let v4 = (0..count).map(|i| IpAddr::from([9, 0, 0, i]));
    let v6 = (0..count).map(|i| IpAddr::from([0x2003, 0, 0, 0, 0, 0, 0, u16::from(i)]));
    v4.chain(v6).collect()
}

#[test]
fn answers_wake_the_poll() {
    let mut bench = Bench::new(|name| match name {
        "one.example" => Ok(addresses(1)),
        _ => Err(io::Error::other("Name or service not known")),
    });
    let good = bench.resolver.submit(name("one.example")).unwrap();
    let answer = bench.answer();
    assert_eq!((answer.query, answer.result), (good, Ok(addresses(1))));
    let bad = bench.resolver.submit(name("two.example")).unwrap();
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
fn full_queue_refuses_and_recovers() {
    let gate = Arc::new(Gate::default());
    let inner = Arc::clone(&gate);
    let mut bench = Bench::new(move |_| {
        inner.wait();
        Ok(addresses(1))
    });
    // The threads take some from the queue at their own pace: only the bounds are certain.
    let mut taken = 0;
    let error = loop {
        match bench.resolver.submit(name("slow.example")) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken <= QUEUE_MAX + THREADS, "the queue has no bound");
    };
    assert_eq!(error, ResolveError::Overload);
    assert!(taken >= QUEUE_MAX);
    gate.open();
    for _ in 0..taken {
        while bench.resolver.poll().is_none() {
            std::thread::yield_now();
        }
    }
    bench.resolver.submit(name("slow.example")).unwrap();
    assert_eq!(bench.answer().result, Ok(addresses(1)));
}

#[test]
fn temporary_and_permanent_errors_are_distinguished() {
    let lookup = |text: &str| {
        classify(&io::Error::other(format!("failed to lookup address information: {text}")))
    };
    assert_eq!(
        lookup("Temporary failure in name resolution"),
        ResolveError::Temporary("Temporary failure in name resolution".into())
    );
    for text in ["Name or service not known", "No address associated with hostname"] {
        assert_eq!(lookup(text), ResolveError::NotFound(text.into()));
    }
}

#[test]
fn system_resolver_knows_localhost() {
    let poll = mio::Poll::new().unwrap();
    let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
    let mut bench = Bench { poll, resolver: Resolver::start(waker).unwrap() };
    bench.resolver.submit(name("localhost")).unwrap();
    let found = bench.answer().result.unwrap();
    assert!(found.iter().all(IpAddr::is_loopback), "{found:?}");
}
