//! The accounts of used data.

use polyrail_config::{GatewayConfig, GatewayTables};
use time::Date;
use time::macros::date;

use super::account::{Account, Reading};
use super::*;
use crate::{AdminHandle, AdminOptions, StartOptions};

fn reading(index: u32, bytes: u64) -> Option<Reading> {
    Some(Reading { index, bytes })
}

/// An account with a first reading of zero on this day.
fn account(day: Date) -> Account {
    let mut account = Account::default();
    assert!(account.take(day, "wwan0", reading(3, 0)));
    account
}

/// The bytes of the current period.
fn used(account: &Account, clock: Date, reset_day: u8) -> u64 {
    let (since, until) = account.period(clock, reset_day);
    account.used(since, until)
}

#[test]
fn only_new_bytes_count_and_a_new_interface_counts_from_zero() {
    let day = date!(2026 - 11 - 26);
    let mut account = Account::default();
    let steps = [
        ("wwan0", reading(3, 5_000), 0, "the first reading is the zero"),
        ("wwan0", reading(3, 5_400), 400, "the difference"),
        ("wwan0", None, 400, "the interface is missing"),
        ("wwan0", reading(4, 70), 470, "a new interface"),
        ("wwan0", reading(4, 30), 500, "a counter that began again"),
        ("wwan1", reading(7, 9_000), 500, "another interface: its zero"),
        ("wwan1", reading(7, 9_001), 501, "and its difference"),
    ];
    for (interface, reading, wanted, why) in steps {
        account.take(day, interface, reading);
        assert_eq!(used(&account, day, 1), wanted, "{why}");
    }
    assert!(!account.take(day, "wwan1", reading(7, 9_001)), "nothing has changed");
}

#[test]
fn period_begins_on_its_day() {
    let account = Account::default();
    for (day, reset_day, since, until) in [
        (date!(2026 - 11 - 26), 1, date!(2026 - 11 - 01), date!(2026 - 12 - 01)),
        (date!(2026 - 12 - 01), 1, date!(2026 - 12 - 01), date!(2027 - 01 - 01)),
        (date!(2026 - 11 - 26), 26, date!(2026 - 11 - 26), date!(2026 - 12 - 26)),
        (date!(2026 - 11 - 26), 27, date!(2026 - 10 - 27), date!(2026 - 11 - 27)),
        (date!(2027 - 01 - 14), 15, date!(2026 - 12 - 15), date!(2027 - 01 - 15)),
        (date!(2028 - 03 - 27), 28, date!(2028 - 02 - 28), date!(2028 - 03 - 28)),
    ] {
        assert_eq!(account.period(day, reset_day), (since, until), "{day}, from {reset_day}");
    }
}

#[test]
fn next_period_starts_at_zero_and_the_day_may_change() {
    let mut account = account(date!(2026 - 11 - 10));
    account.take(date!(2026 - 11 - 10), "wwan0", reading(3, 100));
    account.take(date!(2026 - 11 - 20), "wwan0", reading(3, 120));
    let today = date!(2026 - 11 - 20);
    assert_eq!([1, 15, 21].map(|day| used(&account, today, day)), [120, 20, 120]);
    let today = date!(2026 - 12 - 01);
    account.take(today, "wwan0", reading(3, 123));
    assert_eq!([1, 15].map(|day| used(&account, today, day)), [3, 23]);
}

#[test]
fn clock_that_jumps_wipes_nothing_and_counts_nothing_twice() {
    let today = date!(2026 - 11 - 20);
    let mut account = account(today);
    account.take(today, "wwan0", reading(3, 100));
    for (clock, total, wanted, why) in [
        (date!(1970 - 01 - 01), 110, 110, "not set"),
        (date!(2026 - 10 - 31), 120, 120, "a little behind, in the last period"),
        (date!(2026 - 11 - 21), 130, 130, "set again"),
        (date!(2021 - 03 - 05), 140, 140, "far behind"),
        (date!(2026 - 11 - 21), 150, 140, "right again, without the bytes of 2021"),
        (date!(2038 - 01 - 19), 151, 1, "far ahead"),
        (date!(2026 - 11 - 21), 152, 142, "right again: the bytes of 2038 are known"),
    ] {
        account.take(clock, "wwan0", reading(3, total));
        assert_eq!(used(&account, clock, 1), wanted, "{why}");
    }
}

#[test]
fn bytes_before_the_clock_is_set_count_on_the_first_right_day() {
    let mut account = account(date!(1970 - 01 - 01));
    account.take(date!(1970 - 01 - 01), "wwan0", reading(3, 50));
    let today = date!(2026 - 11 - 20);
    account.take(today, "wwan0", reading(3, 60));
    assert_eq!(used(&account, today, 1), 60);
}

#[test]
fn days_are_bounded() {
    let mut day = date!(2026 - 01 - 01);
    let mut account = account(day);
    for count in 1..1_000 {
        day = day.next_day().unwrap();
        account.take(day, "wwan0", reading(3, count));
    }
    assert_eq!(account.used(Date::MIN, Date::MAX), 100);
}

#[test]
fn file_survives_a_restart_and_a_damaged_one_is_kept_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage.json");
    assert!(file::read(&path).is_empty(), "a missing file");
    let today = date!(2026 - 11 - 20);
    let mut one = account(today);
    one.take(today, "wwan0", reading(3, 77));
    let accounts = BTreeMap::from([("a".to_owned(), one)]);
    file::write(&path, &accounts).unwrap();
    let mut read = file::read(&path);
    assert_eq!(read, accounts);
    // Bytes between the last write and the restart count, too.
    let one = read.get_mut("a").unwrap();
    one.take(today, "wwan0", reading(3, 80));
    assert_eq!(used(one, today, 1), 80);
    std::fs::write(&path, "{").unwrap();
    assert!(file::read(&path).is_empty());
    assert!(folder.path().join("usage.json.damaged").exists());
}

/// A data plane that meters the loopback interface.
struct Plane {
    poll: mio::Poll,
    handle: AdminHandle<GatewayTables>,
}

impl Plane {
    fn start(usage: PathBuf) -> Self {
        let text = "[tls]\ncertificate = \"c\"\nkey = \"k\"\nauthority = \"a\"\n\
                    [cloud]\nname = \"c\"\n\
                    addresses = [\"192.0.2.1:1\"]\n[[carrier]]\nname = \"a\"\ninterface = \"lo\"\n\
                    [socks5]\nlisten = [\"127.0.0.1:1\"]\n";
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
        let options = AdminOptions {
            config: GatewayConfig::parse(text, "/none/gateway.toml".as_ref()).unwrap(),
            start: StartOptions::default(),
            waker,
            watch_links: false,
            usage: Some(usage),
            linkdb: None,
        };
        let handle = crate::start(options).unwrap();
        let (carrier, interface) = ("a".to_owned(), "lo".to_owned());
        handle.meter(vec![Metered { carrier, interface, reset_day: 1 }]);
        Self { poll, handle }
    }

    /// The first report of at least so many bytes.
    fn used(&mut self, wanted: u64) -> u64 {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            while let Some(command) = self.handle.try_recv() {
                let AdminCommand::Usage(usage) = command else { panic!("{command:?}") };
                assert_eq!((usage.len(), usage[0].carrier.as_str()), (1, "a"));
                if usage[0].used_bytes >= wanted {
                    return usage[0].used_bytes;
                }
            }
            let left = end.checked_duration_since(Instant::now()).expect("a report in time");
            let mut events = mio::Events::with_capacity(4);
            self.poll.poll(&mut events, Some(left)).unwrap();
        }
    }
}

/// Sends so many bytes over the loopback interface, where they count twice.
fn send(bytes: usize) {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..bytes / 1_000 {
        socket.send_to(&[7; 1_000], socket.local_addr().unwrap()).unwrap();
    }
}

#[test]
fn kernel_counters_are_reported_and_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage.json");
    let mut plane = Plane::start(path.clone());
    plane.used(0);
    send(500_000);
    let used = plane.used(1_000_000);
    drop(plane);
    assert_eq!(file::read(&path).len(), 1, "it is written at the end");
    // The bytes of a pause count, too.
    send(500_000);
    let mut plane = Plane::start(path);
    assert!(plane.used(used + 1_000_000) >= used + 1_000_000);
}
