//! The TUN driver carries real traffic between real namespaces as the scenario has it.
//!
//! Bounds are loose on the slow side: these tests run on busy machines. What a link must never do
//! (be faster than its model) is checked tightly.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::rail::{Pinger, Rail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const ONE_LINK: &str = r#"
[[link]]
name = "a"
[link.near]
interface = "wan0"
addresses = ["10.1.0.1/24", "fd00:1::1/64"]
[link.far]
interface = "net0"
addresses = ["10.1.0.2/24", "fd00:1::2/64"]
[link.up]
rate = "20 Mbit/s"
delay = "20 ms"
queue = "256 KiB"
[link.down]
rate = "20 Mbit/s"
delay = "20 ms"
queue = "256 KiB"
"#;

/// A running TUN driver; `None` if the test is skipped.
fn tun(scenario: &str, flags: &[&str]) -> Option<Rail> {
    let flags = [&["--driver", "tun"], flags].concat();
    (!common::skipped_without_root("netns")).then(|| Rail::start(scenario, &flags))
}

const PATIENCE: Duration = Duration::from_secs(3);

#[test]
fn both_families_have_the_delay_of_both_directions() {
    let Some(rail) = tun(ONE_LINK, &[]) else { return };
    assert_eq!(rail.ready["driver"], "tun");
    for (near, far) in [("10.1.0.1:0", "10.1.0.2:7"), ("[fd00:1::1]:0", "[fd00:1::2]:7")] {
        let mut pinger = Pinger::new(&rail, near, far);
        let best = (0..10).filter_map(|_| pinger.ping(PATIENCE)).min().unwrap();
        assert!(best >= Duration::from_millis(40), "{best:?} is faster than the link");
        assert!(best < Duration::from_millis(60), "{best:?} for 40 ms");
    }
    let lines = rail.stop();
    let counters = &lines[0]["up"];
    assert_eq!(lines[0]["link"], "a");
    assert_eq!(counters["offered"]["packets"], counters["delivered"]["packets"]);
    assert!(counters["delivered"]["packets"].as_u64().unwrap() >= 20);
    assert!(lines.last().unwrap()["total"]["timing"]["p999_us"].is_number());
}

#[test]
fn tcp_gets_the_rate_and_no_more() {
    const BYTES: usize = 5_000_000;
    let Some(rail) = tun(ONE_LINK, &["--report", "200ms"]) else { return };
    let listener = rail.far.run(|| TcpListener::bind("10.1.0.2:80")).unwrap().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&vec![7; BYTES]).unwrap();
    });
    let mut client = rail.near.run(|| TcpStream::connect("10.1.0.2:80")).unwrap().unwrap();
    let start = Instant::now();
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    let rate = BYTES as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e6;
    server.join().unwrap();
    assert!(got.len() == BYTES && got.iter().all(|byte| *byte == 7));
    println!("goodput {rate:.2} Mbit/s of 20");
    assert!(rate < 20.0, "{rate} Mbit/s through 20");
    assert!(rate > 2.0, "{rate} Mbit/s through 20, which no busy machine explains");
    assert!(rail.stop().len() > 4, "no reports while it ran");
}

#[test]
fn commands_take_effect_and_errors_are_told() {
    let Some(rail) = tun(ONE_LINK, &[]) else { return };
    let mut control = rail.control();
    let mut pinger = Pinger::new(&rail, "10.1.0.1:0", "10.1.0.2:7");
    assert!(pinger.ping(PATIENCE).is_some());

    control.command("down a drop").unwrap();
    assert_eq!(pinger.ping(Duration::from_millis(300)), None);
    control.command("up a").unwrap();
    assert!(pinger.ping(PATIENCE).is_some(), "what was dropped came back or the link stayed down");

    control.command("down a.down hold").unwrap();
    let waiter = std::thread::spawn(move || (pinger.ping(PATIENCE), pinger));
    std::thread::sleep(Duration::from_millis(300));
    control.command("up a.down").unwrap();
    let (held, mut pinger) = waiter.join().unwrap();
    assert!(held.unwrap() > Duration::from_millis(280), "{held:?} through a blackout");

    control.command("set a delay 100 ms").unwrap();
    let slow = pinger.ping(PATIENCE).unwrap();
    assert!(slow >= Duration::from_millis(200), "{slow:?}");
    control.command("set a.up loss 1").unwrap();
    assert_eq!(pinger.ping(Duration::from_millis(400)), None);
    let stats = control.command("stats").unwrap();
    assert_eq!(stats["links"][0]["up"]["lost"]["packets"], 1);
    assert!(stats["links"][0]["up"]["blackout"]["packets"].as_u64().unwrap() >= 1);
    for (line, reason) in [("up b", "no link \"b\"; there are: a"), ("nonsense", "is none of")] {
        let error = control.command(line).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let socket = rail.socket();
    assert!(socket.exists());
    rail.stop();
}

#[test]
fn udp_is_policed_and_tcp_is_not() {
    let scenario = ONE_LINK.replacen("[link.up]", "[link.up]\nudp = \"blocked\"", 1);
    let Some(rail) = tun(&scenario, &[]) else { return };
    let mut control = rail.control();
    for (near, far) in [("10.1.0.1:0", "10.1.0.2:7"), ("[fd00:1::1]:0", "[fd00:1::2]:7")] {
        control.command("set a udp blocked").unwrap();
        let mut pinger = Pinger::new(&rail, near, far);
        assert_eq!(pinger.ping(Duration::from_millis(300)), None);
        let address = far.replace(":7", ":80");
        let listener = rail.far.run(|| TcpListener::bind(&address)).unwrap().unwrap();
        rail.near.run(|| TcpStream::connect(&address)).unwrap().unwrap();
        drop(listener);
        control.command("set a udp free").unwrap();
        assert!(pinger.ping(PATIENCE).is_some(), "{far}");
    }
    control.command("set a.up udp 80 kbit/s").unwrap();
    let sender = rail.near.run(|| UdpSocket::bind("10.1.0.1:0")).unwrap().unwrap();
    // 100 datagrams of 1028 bytes at once; the bucket has 3000 bytes and gains 10 a millisecond.
    for _ in 0..100 {
        sender.send_to(&[7; 1000], "10.1.0.2:9").unwrap();
    }
    std::thread::sleep(Duration::from_millis(100));
    let stats = control.command("stats").unwrap();
    let policed = stats["links"][0]["up"]["policed"]["packets"].as_u64().unwrap();
    assert!(policed > 80, "{stats}");
}

#[test]
fn a_small_path_tells_its_mtu_unless_it_is_silent() {
    let Some(rail) = tun(ONE_LINK, &[]) else { return };
    let mut control = rail.control();
    control.command("set a mtu 1280 silent").unwrap();
    for (near, far, route) in [
        ("10.1.0.1:0", "10.1.0.2:9", "route get 10.1.0.2"),
        ("[fd00:1::1]:0", "[fd00:1::2]:9", "-6 route get fd00:1::2"),
    ] {
        control.command("set a mtu 1280 silent").unwrap();
        let socket = rail.near.run(|| UdpSocket::bind(near)).unwrap().unwrap();
        socket.connect(far).unwrap();
        let told = || rail.near.tool("ip", route).unwrap().contains("mtu 1280");
        socket.send(&[7; 1400]).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(!told(), "a black hole told its MTU");
        control.command("set a mtu 1280").unwrap();
        socket.send(&[7; 1400]).unwrap();
        let end = Instant::now() + PATIENCE;
        while !told() {
            assert!(Instant::now() < end, "the kernel was not told the MTU to {far}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut pinger = Pinger::new(&rail, near, &far.replace(":9", ":7"));
        assert!(pinger.ping(PATIENCE).is_some(), "small packets pass");
    }
    let stats = control.command("stats").unwrap();
    assert_eq!(stats["links"][0]["up"]["too_big"]["packets"], 4, "{stats}");
}

#[test]
fn a_rebinding_nat_changes_ports_and_silences_tcp() {
    let Some(rail) = tun(ONE_LINK, &[]) else { return };
    let mut control = rail.control();
    let far = rail.far.run(|| UdpSocket::bind("[::]:7")).unwrap().unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let near = rail.near.run(|| UdpSocket::bind("10.1.0.1:5555")).unwrap().unwrap();
    near.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
    let hear = |expected: &[u8]| {
        let mut buffer = [0; 16];
        let (length, from) = far.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], expected);
        from
    };
    let listener = rail.far.run(|| TcpListener::bind("10.1.0.2:80")).unwrap().unwrap();
    assert!(control.command("set a nat rebind").is_err(), "there is none yet");
    control.command("set a nat on").unwrap();
    let mut tcp = rail.near.run(|| TcpStream::connect("10.1.0.2:80")).unwrap().unwrap();
    let mut accepted = listener.accept().unwrap().0;
    near.send_to(b"one", "10.1.0.2:7").unwrap();
    let before = hear(b"one");
    assert_eq!(before.port(), 5555);
    control.command("set a nat rebind").unwrap();
    near.send_to(b"two", "10.1.0.2:7").unwrap();
    let after = hear(b"two");
    assert_ne!(after.port(), 5555);
    let mut buffer = [0; 16];
    far.send_to(b"old", before).unwrap();
    assert!(near.recv(&mut buffer).is_err(), "the old port still lets in");
    far.send_to(b"new", after).unwrap();
    assert_eq!(near.recv(&mut buffer).unwrap(), 3);
    assert_eq!(&buffer[..3], b"new");

    accepted.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
    tcp.write_all(b"lost").unwrap();
    let error = accepted.read(&mut buffer).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "neither data nor an end");
    let mut anew = rail.near.run(|| TcpStream::connect("10.1.0.2:80")).unwrap().unwrap();
    anew.write_all(b"anew").unwrap();
    assert_eq!(listener.accept().unwrap().0.read(&mut buffer).unwrap(), 4);
    let stats = control.command("stats").unwrap();
    let dropped = |side: &str| stats["links"][0][side]["nat_dropped"].as_u64().unwrap();
    assert!(dropped("up") >= 1 && dropped("down") >= 1, "{stats}");
}

#[test]
fn scheduled_blackouts_happen_at_their_time() {
    let dark = "[[link.blackout]]\nstart = \"1 s\"\nlength = \"1 s\"\nmode = \"drop\"\n";
    let Some(rail) = tun(&format!("{ONE_LINK}{dark}"), &[]) else { return };
    let start = Instant::now();
    let mut pinger = Pinger::new(&rail, "10.1.0.1:0", "10.1.0.2:7");
    let mut lost = Vec::new();
    while start.elapsed() < Duration::from_millis(2600) {
        let sent = start.elapsed();
        match pinger.ping(Duration::from_millis(150)) {
            None => lost.push(sent),
            Some(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    assert!(lost.len() >= 4, "lost only at {lost:?}");
    // A round trip of 40 ms that began just before, and a late look at the clock.
    let (first, last) = (lost[0], lost[lost.len() - 1]);
    assert!(first > Duration::from_millis(850), "lost at {lost:?}");
    assert!(last < Duration::from_millis(2150), "lost at {lost:?}");
}

#[test]
fn nothing_is_left_when_it_is_killed_or_its_parent_dies() {
    let Some(rail) = tun(ONE_LINK, &[]) else { return };
    let links = || rail.near.tool("ip", "-o link").unwrap();
    assert!(links().contains("wan0"));
    kill(rail.pid(), Signal::SIGKILL).unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    while links().contains("wan0") {
        assert!(Instant::now() < end, "the device is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The thread that starts this one ends at once, and with it the emulator.
    let (orphan, pid) = std::thread::spawn(|| {
        let rail = Rail::start(ONE_LINK, &["--driver", "tun"]);
        let pid = rail.pid();
        (rail, pid)
    })
    .join()
    .unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    while std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.contains(") Z "))
    {
        assert!(Instant::now() < end, "the emulator outlived its parent");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(orphan);
}

#[test]
fn it_outlives_a_script_that_started_it_in_the_background() {
    if common::skipped_without_root("netns") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let read = |name: &str| std::fs::read_to_string(file(name)).unwrap();
    std::fs::write(file("scenario.toml"), ONE_LINK).unwrap();
    let far = polyrail_emulator::namespace::Namespace::new().unwrap();
    let script = format!(
        "nohup {} run scenario.toml --driver tun --far {} --control control >ready 2>log &
         echo $! >pid; while kill -0 $! && ! grep -q ready ready; do sleep 0.01; done",
        env!("CARGO_BIN_EXE_polyrail-emulator"),
        far.path().display()
    );
    let mut shell = std::process::Command::new("unshare");
    shell.args(["--net", "sh", "-ec", &script]).current_dir(folder.path());
    let status = shell.stdin(std::process::Stdio::null()).status().unwrap();
    let emulator = Orphan(read("pid").trim().parse().map(Pid::from_raw).unwrap());
    assert!(status.success(), "{status}: {}", read("log"));
    // The script has ended; now its terminal closes.
    kill(emulator.0, Signal::SIGHUP).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let mut control = polyrail_emulator::control::Client::connect(file("control")).unwrap();
    let stats = control.command("stats").unwrap();
    assert_eq!(stats["links"][0]["link"], "a");
    kill(emulator.0, Signal::SIGTERM).unwrap();
    let end = Instant::now() + PATIENCE;
    while !read("log").contains("SIGTERM") {
        assert!(Instant::now() < end, "no reason of its end in the log: {}", read("log"));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process without a parent; it ends with the test.
struct Orphan(Pid);

impl Drop for Orphan {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

#[test]
fn an_interface_may_go_down_but_not_away() {
    let Some(mut rail) = tun(ONE_LINK, &[]) else { return };
    let mut pinger = Pinger::new(&rail, "10.1.0.1:0", "10.1.0.2:7");
    rail.far.ip("link set net0 down").unwrap();
    assert_eq!(pinger.ping(Duration::from_millis(200)), None);
    let stats = rail.control().command("stats").unwrap();
    assert_eq!(stats["links"][0]["up"]["refused"], 1, "{stats}");
    rail.far.ip("link set net0 up").unwrap();
    assert!(pinger.ping(PATIENCE).is_some(), "the link did not come back");
    rail.far.ip("link del net0").unwrap();
    assert!(!rail.wait().success(), "the emulator goes on without its device");
}

#[test]
fn failure_to_start_is_explained() {
    if common::skipped_without_root("netns") {
        return;
    }
    let explain = |scenario: &str, flags: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bad.toml");
        std::fs::write(&file, scenario).unwrap();
        let here = polyrail_emulator::namespace::Namespace::new().unwrap();
        let mut command = here.command(env!("CARGO_BIN_EXE_polyrail-emulator"));
        let output = command.arg("run").arg(&file).args(flags).output().unwrap();
        assert!(!output.status.success());
        assert_eq!(output.stdout, b"", "a ready line in spite of the error");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let typo = ONE_LINK.replacen("queue", "quue", 1);
    let error = explain(&typo, &[]);
    assert!(error.contains("bad.toml: line 13: unknown field `quue`"), "{error}");
    assert!(explain(ONE_LINK, &["--near", "/nonexistent"]).contains("/nonexistent"));
    let same = ONE_LINK.replace("net0", "wan0");
    let error = explain(&same, &["--driver", "tun"]);
    assert!(error.contains("link a: cannot set up wan0"), "{error}");
    let error = explain(ONE_LINK, &["--control", "/nonexistent/socket"]);
    assert!(error.contains("/nonexistent/socket"), "{error}");
}
