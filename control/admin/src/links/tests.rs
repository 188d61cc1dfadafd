//! The interface watch against the kernel, in a network namespace of its own.

use std::io::Write;
use std::path::Path;
use std::process::Command as Process;
use std::time::Instant;

use mio::{Events, Poll, Token, Waker};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};

use super::*;
use crate::{AdminHandle, AdminOptions, StartOptions};
use polyrail_config::{GatewayConfig, GatewayTables};

/// How long the kernel and the watch may take for one step.
const STEP: Duration = Duration::from_secs(5);

/// A data plane that receives only changes of interfaces.
struct Plane {
    poll: Poll,
    handle: AdminHandle<GatewayTables>,
}

fn options(carriers: &str, waker: Arc<Waker>) -> AdminOptions<GatewayTables> {
    let text = format!(
        "[tls]\ncertificate = \"c\"\nkey = \"k\"\nauthority = \"a\"\n[cloud]\nname = \"c\"\n\
         addresses = [\"192.0.2.1:1\"]\n{carriers}[socks5]\nlisten = [\"127.0.0.1:1\"]\n"
    );
    AdminOptions {
        config: GatewayConfig::parse(&text, Path::new("/none/gateway.toml")).unwrap(),
        start: StartOptions::default(),
        waker,
        watch_links: true,
        usage: None,
        linkdb: None,
    }
}

impl Plane {
    fn start(carriers: &str) -> Self {
        let poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
        Self { poll, handle: crate::start(options(carriers, waker)).unwrap() }
    }

    /// The next change; `None` when there is none in time.
    fn next(&mut self, within: Duration) -> Option<LinkChange> {
        let end = Instant::now() + within;
        loop {
            if let Some(command) = self.handle.try_recv() {
                match command {
                    AdminCommand::Links(change) => return Some(change),
                    other => panic!("unexpected {other:?}"),
                }
            }
            let left = end.checked_duration_since(Instant::now())?;
            self.poll.poll(&mut Events::with_capacity(4), Some(left)).unwrap();
        }
    }

    /// The first change of `interface` that satisfies a condition.
    fn until(&mut self, interface: &str, condition: impl Fn(&LinkChange) -> bool) -> LinkChange {
        let end = Instant::now() + STEP;
        let mut last = None;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            match self.next(left) {
                Some(change) if change.interface == interface && condition(&change) => {
                    return change;
                }
                other => last = other,
            }
        }
        panic!("{interface} never satisfied the condition; last: {last:?}");
    }
}

fn ip(arguments: &str) {
    let status = Process::new("ip").args(arguments.split(' ')).status().expect("ip runs");
    assert!(status.success(), "ip {arguments}");
}

/// Runs a test in a network namespace of its own, which the kernel frees when its threads end.
/// Without root it is left out, when `POLYRAIL_ALLOW_SKIP` lists `netns`.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let allowed = std::env::var("POLYRAIL_ALLOW_SKIP").unwrap_or_default();
    if !geteuid().is_root() && allowed.split(',').any(|name| name.trim() == "netns") {
        // Not by `println!`, which the test runner keeps to itself when a test passes.
        let _ = writeln!(std::io::stdout(), "SKIP netns: network namespaces need root");
        return;
    }
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn interfaces_appear_change_and_vanish() {
    in_namespace(|| {
        ip("link add wwan0 type veth peer name far0");
        ip("address add 192.0.2.7/24 dev wwan0");
        let carriers = "[[carrier]]\nname = \"a\"\ninterface = \"wwan0\"\n\
                        [[carrier]]\nname = \"b\"\ninterface = \"wwan1\"\n";
        let mut plane = Plane::start(carriers);
        // At the start each interface is reported, missing ones included.
        let first = plane.until("wwan0", |_| true);
        assert!(first.present && !first.up && first.index > 0, "{first:?}");
        assert_eq!(first.addresses, ["192.0.2.7".parse::<std::net::IpAddr>().unwrap()]);
        let absent = LinkChange {
            interface: "wwan1".to_owned(),
            index: 0,
            present: false,
            up: false,
            addresses: Vec::new(),
        };
        assert_eq!(plane.until("wwan1", |_| true), absent);

        ip("link set far0 up");
        ip("link set wwan0 up");
        plane.until("wwan0", |change| change.up);
        ip("address add 2001:db8::7/64 dev wwan0 nodad");
        plane.until("wwan0", |change| change.addresses.len() == 2);
        // A modem that was reset has another address.
        ip("address del 192.0.2.7/24 dev wwan0");
        ip("address add 192.0.2.8/24 dev wwan0");
        let new: std::net::IpAddr = "192.0.2.8".parse().unwrap();
        plane.until("wwan0", |change| change.addresses.len() == 2 && change.addresses[0] == new);
        ip("link set wwan0 down");
        let down = plane.until("wwan0", |change| !change.up);
        assert!(down.present);

        ip("link add wwan1 type veth peer name far1");
        let fresh = plane.until("wwan1", |change| change.present);
        ip("link del wwan0");
        let gone = plane.until("wwan0", |change| !change.present);
        assert_eq!((gone.index, gone.addresses.len()), (0, 0));
        // A new interface of the same name.
        ip("link del wwan1");
        ip("link add wwan1 type veth peer name far1");
        plane.until("wwan1", |change| change.present && change.index != fresh.index);
        // An interface of no carrier is not reported.
        ip("link add lan0 type veth peer name far2");
        assert_eq!(plane.next(Duration::from_millis(300)), None);
    });
}

#[test]
fn all_interfaces_are_reported_for_a_carrier_bound_to_an_address() {
    in_namespace(|| {
        let mut plane = Plane::start("[[carrier]]\nname = \"a\"\nsource = \"192.0.2.7\"\n");
        plane.until("lo", |change| change.present);
        ip("link add any0 type veth peer name far0");
        plane.until("any0", |change| change.present);
        ip("link del any0");
        plane.until("any0", |change| !change.present);
    });
}

/// Changing names (`ppp17`, `veth9ab1`) do not accumulate over years.
#[test]
fn removed_interfaces_are_reported_once_and_forgotten() {
    let poll = Poll::new().unwrap();
    let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
    let (sender, commands) = std::sync::mpsc::sync_channel(4);
    let carriers = "[[carrier]]\nname = \"a\"\nsource = \"192.0.2.7\"\n";
    let control = Arc::new(options(carriers, waker).into_control(sender));
    let mut reporter = Reporter { control, sent: BTreeMap::new(), started: false };
    let reported = |reporter: &mut Reporter<GatewayTables>, table: &Table| {
        assert!(reporter.report(table));
        let all = commands.try_iter().map(|command| match command {
            AdminCommand::Links(change) => (change.interface, change.present),
            other => panic!("unexpected {other:?}"),
        });
        all.collect::<Vec<_>>()
    };
    let mut table = Table::default();
    for number in 1..=50 {
        let mut link = LinkMessage::default();
        link.header.index = number;
        let name = format!("ppp{number}");
        link.attributes = vec![LinkAttribute::IfName(name.clone())];
        table.apply(&RouteNetlinkMessage::NewLink(link.clone()));
        assert_eq!(reported(&mut reporter, &table), [(name.clone(), true)]);
        table.apply(&RouteNetlinkMessage::DelLink(link));
        assert_eq!(reported(&mut reporter, &table), [(name, false)]);
        assert_eq!(reported(&mut reporter, &table), []);
        assert!(reporter.sent.is_empty(), "{:?}", reporter.sent);
    }
    // A missing interface of a carrier is remembered.
    reporter.control.interfaces.send_replace(Some(vec!["wwan0".to_owned()]));
    assert_eq!(reported(&mut reporter, &table), [("wwan0".to_owned(), false)]);
    assert_eq!((reported(&mut reporter, &table), reporter.sent.len()), (vec![], 1));
    reporter.control.interfaces.send_replace(None);
    assert_eq!((reported(&mut reporter, &table), reporter.sent.len()), (vec![], 0));
}

/// The kernel reports an overrun instead of the notices themselves.
#[test]
fn interfaces_are_listed_again_after_lost_notices() {
    in_namespace(|| {
        let carriers = "[[carrier]]\nname = \"a\"\ninterface = \"wwan0\"\n";
        let poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let (sender, commands) = std::sync::mpsc::sync_channel(1);
        let control = Arc::new(options(carriers, waker).into_control(sender));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection().unwrap();
            tokio::spawn(connection);
            let (lose, lost) = tokio::sync::mpsc::unbounded_channel();
            let notices = Box::pin(futures_util::stream::unfold(lost, |mut lost| async {
                lost.recv().await.map(|()| (NetlinkPayload::Overrun(Vec::new()), lost))
            }));
            let mut reporter = Reporter { control, sent: BTreeMap::new(), started: false };
            let tracking = tokio::spawn(async move {
                let _ = track(&mut reporter, &handle, notices).await;
            });
            let reported = || async {
                for _ in 0..500 {
                    match commands.try_recv() {
                        Ok(AdminCommand::Links(change)) => return Some(change.present),
                        _ => sleep(Duration::from_millis(10)).await,
                    }
                }
                None
            };
            assert_eq!(reported().await, Some(false));
            ip("link add wwan0 type veth peer name far0");
            sleep(Duration::from_millis(200)).await;
            assert!(commands.try_recv().is_err(), "no notice arrived");
            lose.send(()).unwrap();
            assert_eq!(reported().await, Some(true));
            tracking.abort();
        });
    });
}

/// More changes than the socket buffers, while the control thread is slow.
#[test]
fn latest_state_is_reported_after_a_storm_of_changes() {
    in_namespace(|| {
        ip("link add wwan0 type veth peer name far0");
        let mut plane = Plane::start("[[carrier]]\nname = \"a\"\ninterface = \"wwan0\"\n");
        plane.until("wwan0", |_| true);
        // More changes than the channel to the data plane holds; none of them is received.
        let mut script = String::new();
        for n in 0..2000 {
            let (way, address) = (if n % 2 == 0 { "add" } else { "del" }, n / 2 % 250 + 1);
            script += &format!("address {way} 192.0.2.{address}/32 dev wwan0\n");
        }
        script += "address add 203.0.113.5/32 dev wwan0\nlink set far0 up\nlink set wwan0 up\n";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), script).unwrap();
        ip(&format!("-batch {}", file.path().display()));
        let last: std::net::IpAddr = "203.0.113.5".parse().unwrap();
        plane.until("wwan0", |change| change.up && change.addresses == [last]);
    });
}
