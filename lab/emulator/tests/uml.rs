//! The netem driver, inside the kernel of Debian's package `user-mode-linux`, which has netem
//! where the host's may not.
//!
//! The host's files are the root of that kernel, read-only; its first process runs this test's own
//! program again, to measure inside. No privilege is needed outside.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use common::rail::{Pinger, Rail};
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use polyrail_emulator::guest;
use polyrail_emulator::namespace::{Namespace, die_with_parent};

/// It takes some ten seconds; a machine that needs so long is broken.
const HARD_LIMIT: Duration = Duration::from_secs(120);

const PATIENCE: Duration = Duration::from_secs(3);

const SCENARIO: &str = r#"
[[link]]
name = "a"
near = { interface = "wan0", addresses = ["10.1.0.1/24", "fd00:1::1/64"] }
far = { interface = "net0", addresses = ["10.1.0.2/24", "fd00:1::2/64"] }
up = { rate = "8 Mbit/s", delay = "30 ms", queue = "128 KiB" }
down = { rate = "8 Mbit/s", delay = "30 ms", queue = "128 KiB" }
[[link.blackout]]
start = "3 s"
length = "2 s"
mode = "drop"

[[link]]
name = "b"
near.addresses = ["10.2.0.1/24"]
far.addresses = ["10.2.0.2/24"]
up = { loss = 0.1, burst_loss = { enter = 0.01, leave = 0.3 }, duplicate = 0.01 }
down = { rate = "5 Mbit/s", rate_steps = [{ at = "1 s", rate = "4 Mbit/s" }] }
"#;

#[test]
fn the_netem_driver_works_in_user_mode_linux() {
    let uml = "/usr/bin/linux.uml";
    if !std::path::Path::new(uml).exists() {
        common::skip_or_fail("uml-netem", "install Debian's package user-mode-linux");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let init = folder.path().join("init");
    std::fs::write(&init, init_script()).unwrap();
    std::fs::set_permissions(&init, Permissions::from_mode(0o755)).unwrap();
    let mut command = contained(uml);
    die_with_parent(&mut command);
    let mut child = command
        .args(["mem=256M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet"])
        .args(["con=null", "con0=null,fd:1", "ssl=null", "panic=-1"])
        .arg(format!("init={}", init.display()))
        .env("TMPDIR", folder.path())
        .env("HOME", folder.path())
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let group = Pid::from_raw(child.id() as i32);
    let (lines, inbox) = channel();
    let out = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        // Lines end when the kernel does; they may hold anything.
        out.split(b'\n').map_while(Result::ok).for_each(|line| {
            let _ = lines.send(String::from_utf8_lossy(&line).trim_end().to_owned());
        });
    });
    let end = Instant::now() + HARD_LIMIT;
    let (mut said, mut verdict) = (String::new(), None);
    while verdict.is_none() {
        match inbox.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                verdict = line.strip_prefix("INSIDE ended with ").map(str::to_owned);
                said += &format!("{line}\n");
                if line.contains("Kernel panic") {
                    verdict = Some("a panic".to_owned());
                }
            }
            Err(RecvTimeoutError::Timeout) => verdict = Some("the hard limit".to_owned()),
            Err(RecvTimeoutError::Disconnected) => verdict = Some("a dead kernel".to_owned()),
        }
    }
    // The kernel's processes here are all in its group.
    let _ = killpg(group, Signal::SIGKILL);
    child.wait().unwrap();
    reader.join().unwrap();
    println!("{said}");
    if guest::died_of_tiles(&said) {
        println!("SKIP uml-amx: {}", guest::TILES);
        return;
    }
    assert_eq!(verdict.as_deref(), Some("0"), "inside user-mode Linux:\n{said}");
}

/// The kernel as a command. Its helper processes outlive it when it is killed, unless all of them
/// are in a namespace of processes, which takes root; without, only an orderly test ends them.
fn contained(uml: &str) -> Command {
    if !nix::unistd::geteuid().is_root() {
        return Command::new(uml);
    }
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child=KILL", "--mount-proc", uml]);
    command
}

fn init_script() -> String {
    let myself = std::env::current_exe().unwrap();
    format!(
        "#!/bin/sh\n\
         export PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/run RUST_BACKTRACE=0\n\
         mount -t proc proc /proc\n\
         mount -t tmpfs run /run\n\
         {} --exact measured_inside --ignored --nocapture --test-threads=1 2>&1\n\
         echo \"INSIDE ended with $?\"\n\
         sleep 1000\n",
        myself.display()
    )
}

#[test]
#[ignore = "the_netem_driver_works_in_user_mode_linux runs it in a kernel with netem"]
fn measured_inside() {
    ["ipv6", "veth", "sch_netem"].into_iter().for_each(load_module);
    let rail = Rail::start(SCENARIO, &["--driver", "auto"]);
    let start = Instant::now();
    assert_eq!(rail.ready["driver"], "netem", "{}", rail.ready);
    a_scheduled_blackout_is_total(&rail, start);
    the_delay_is_the_scenarios(&rail);
    the_rate_limit_holds(&rail);
    commands_reach_netem(&rail);
    let lines = rail.stop();
    let carried = &lines[0]["up"]["delivered"]["packets"];
    assert!(carried.as_u64().unwrap() > 10, "{}", lines[0]);
    what_netem_cannot_do_is_refused();
}

/// Loads a module of the kernel inside with what it needs. (There may be no modprobe.)
fn load_module(name: &str) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let folder = PathBuf::from("/usr/lib/uml/modules").join(release.trim());
    let listed = std::fs::read_to_string(folder.join("modules.dep")).unwrap();
    let (file, needs) = listed
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(file, _)| file.ends_with(&format!("/{name}.ko")))
        .unwrap_or_else(|| panic!("no module {name} in {}", folder.display()));
    for file in needs.split_whitespace().rev().chain([file]) {
        let module = File::open(folder.join(file)).unwrap();
        match finit_module(&module, c"", ModuleInitFlags::empty()) {
            Ok(()) | Err(nix::Error::EEXIST) => {}
            Err(error) => panic!("cannot load {file}: {error}"),
        }
    }
}

fn a_scheduled_blackout_is_total(rail: &Rail, start: Instant) {
    let mut pinger = Pinger::new(rail, "10.1.0.1:0", "10.1.0.2:7");
    let (mut dark, mut light) = (Vec::new(), 0);
    while start.elapsed() < Duration::from_millis(5500) {
        let sent = start.elapsed();
        // The schedule began some time before the ready line came; the edges are left out.
        let at = sent.as_millis();
        let (within, beside) = ((3100..4700).contains(&at), !(2500..5100).contains(&at));
        // Beside the blackout a late answer is one; a busy machine holds the kernel inside up.
        let patience = if beside { PATIENCE } else { Duration::from_millis(200) };
        let answered = pinger.ping(patience).is_some();
        if within {
            dark.push(answered);
        } else if beside {
            assert!(answered, "lost at {sent:?}");
            light += 1;
        }
    }
    let lost = dark.iter().filter(|answered| !**answered).count();
    println!("MEASURED blackout: {lost} lost of {}; beside it 0 of {light}", dark.len());
    assert!(dark.len() >= 4 && dark.iter().all(|answered| !answered), "{dark:?}");
}

fn the_delay_is_the_scenarios(rail: &Rail) {
    for (near, far) in [("10.1.0.1:0", "10.1.0.2:8"), ("[fd00:1::1]:0", "[fd00:1::2]:8")] {
        let mut pinger = Pinger::new(rail, near, far);
        let mut times: Vec<_> = (0..20).filter_map(|_| pinger.ping(PATIENCE)).collect();
        times.sort();
        let median = times[times.len() / 2];
        println!("MEASURED round trip {median:?} of 60 ms to {far}");
        assert_eq!(times.len(), 20, "lost without a fault");
        assert!(median >= Duration::from_millis(60), "{median:?} is faster than the link");
        assert!(median < Duration::from_millis(80), "{median:?} for 60 ms");
    }
}

fn the_rate_limit_holds(rail: &Rail) {
    const BYTES: usize = 2_000_000;
    let listener = rail.far.run(|| TcpListener::bind("10.1.0.2:80")).unwrap().unwrap();
    let server = std::thread::spawn(move || {
        listener.accept().unwrap().0.write_all(&vec![7; BYTES]).unwrap();
    });
    let mut client = rail.near.run(|| TcpStream::connect("10.1.0.2:80")).unwrap().unwrap();
    let (start, mut got) = (Instant::now(), Vec::new());
    client.read_to_end(&mut got).unwrap();
    let rate = BYTES as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e6;
    server.join().unwrap();
    println!("MEASURED goodput {rate:.2} of 8 Mbit/s");
    assert_eq!(got.len(), BYTES);
    assert!(rate > 1.0 && rate < 8.0, "{rate} Mbit/s through 8");
}

fn commands_reach_netem(rail: &Rail) {
    let mut control = rail.control();
    let mut pinger = Pinger::new(rail, "10.1.0.1:0", "10.1.0.2:9");
    control.command("down a").unwrap();
    assert_eq!(pinger.ping(Duration::from_millis(400)), None, "down, and yet an answer");
    control.command("up a").unwrap();
    control.command("set a.up delay 130 ms").unwrap();
    let slow = pinger.ping(PATIENCE).unwrap();
    println!("MEASURED round trip {slow:?} of 160 ms after a command");
    assert!(slow >= Duration::from_millis(160) && slow < Duration::from_millis(220), "{slow:?}");
    let stats = control.command("stats").unwrap();
    assert!(stats["links"][0]["up"]["unsorted_drops"].as_u64().unwrap() >= 1, "{stats}");
    control.command("set a.up burst-loss 1 0").unwrap();
    // netem turns bad behind its first packet.
    pinger.ping(Duration::from_millis(400));
    assert_eq!(pinger.ping(Duration::from_millis(400)), None, "one burst without end");
    control.command("set a.up burst-loss off").unwrap();
    assert!(pinger.ping(PATIENCE).is_some(), "the burst goes on");
    for line in ["down a hold", "set a udp blocked", "set a nat on", "set a mtu 1280"] {
        let refused = control.command(line).unwrap_err().to_string();
        assert!(refused.contains("the tun driver can"), "{refused}");
    }
}

fn what_netem_cannot_do_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hold.toml");
    std::fs::write(&file, SCENARIO.replace("\"drop\"", "\"hold\"")).unwrap();
    let mut command = Namespace::new().unwrap().command(env!("CARGO_BIN_EXE_polyrail-emulator"));
    let output = command.arg("run").arg(&file).args(["--driver", "netem"]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(words.contains("link a, up: netem cannot hold packets"), "{words}");
}
