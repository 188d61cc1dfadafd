//! Anonymous network namespaces for the tests of interception: passengers, gateway, outside.
//!
//! A namespace is a thread in it; the kernel frees it when its threads and programs end, however
//! the test ends. Needs root; see [`may_skip`].

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Pid, geteuid, gettid};
use polyrail_config::GatewayConfig;
use socket2::{Domain, Protocol, Socket, Type};

type Job = Box<dyn FnOnce() + Send>;

/// One namespace with its loopback up.
pub struct Namespace {
    jobs: Sender<Job>,
    thread: Pid,
}

impl Namespace {
    /// A new namespace.
    pub fn new() -> Self {
        let (jobs, inbox) = channel::<Job>();
        let (ready, started) = channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
            ready.send(gettid()).expect("the creator waits");
            inbox.into_iter().for_each(|job| job());
        });
        let namespace = Self { jobs, thread: started.recv().expect("namespace") };
        namespace.sh("ip link set lo up
             for i in all default; do echo 0 > /proc/sys/net/ipv6/conf/$i/accept_dad; done");
        namespace
    }

    /// Runs a closure inside; its panic is the caller's.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (answer, result) = channel();
        let job = move || {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            answer.send(outcome).expect("the caller waits");
        };
        self.jobs.send(Box::new(job)).expect("the namespace lives");
        result.recv().expect("an answer").unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs shell commands inside, which must succeed. Returns their output.
    pub fn sh(&self, script: &str) -> String {
        let script = script.to_owned();
        self.run(move || {
            let output = Command::new("sh").args(["-ec", &script]).output().expect("sh");
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{script}: {complaint}");
            String::from_utf8(output.stdout).expect("text")
        })
    }

    /// Everything that interception could change.
    pub fn rules(&self) -> String {
        self.sh("nft list ruleset; for f in -4 -6; do ip $f rule; ip $f route show table all; done")
    }
}

/// Passengers behind `lan0` and `lan1` of a gateway, with the outside behind `wan0`.
pub struct Lab {
    /// 10.9.0.2 and fd09::2, behind `lan0`.
    pub passenger: Namespace,
    /// 10.10.0.2 and fd10::2, behind `lan1`.
    pub neighbour: Namespace,
    /// The gateway.
    pub gateway: Namespace,
    /// 198.51.100.2 and 2001:db8:100::2, and there also [`OUTSIDE`].
    pub outside: Namespace,
}

/// More addresses of the outside: bypassed ones, private ones and public ones.
pub const OUTSIDE: [&str; 6] = [
    "203.0.113.9/32",
    "192.168.77.1/32",
    "192.0.2.80/32",
    "2001:db8:bb::9/128",
    "fd77::1/128",
    "2001:db8:80::80/128",
];

impl Lab {
    /// A lab with forwarding and all routes, without our rules.
    pub fn new() -> Self {
        let lab = Self {
            passenger: Namespace::new(),
            neighbour: Namespace::new(),
            gateway: Namespace::new(),
            outside: Namespace::new(),
        };
        let link = |near: &str, namespace: &Namespace, net: &str, v6: &str| {
            lab.gateway.sh(&format!(
                "ip link add {near} type veth peer name eth0 netns {}
                 ip addr add {net}.1/24 dev {near}; ip addr add {v6}::1/64 dev {near} nodad
                 ip link set {near} up",
                namespace.thread
            ));
            namespace.sh(&format!(
                "ip addr add {net}.2/24 dev eth0; ip addr add {v6}::2/64 dev eth0 nodad
                 ip link set eth0 up
                 ip route add default via {net}.1; ip -6 route add default via {v6}::1"
            ));
        };
        link("lan0", &lab.passenger, "10.9.0", "fd09");
        link("lan1", &lab.neighbour, "10.10.0", "fd10");
        link("wan0", &lab.outside, "198.51.100", "2001:db8:100");
        lab.gateway.sh("echo 1 > /proc/sys/net/ipv4/ip_forward
             echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
             ip route add default via 198.51.100.2; ip -6 route add default via 2001:db8:100::2");
        for address in OUTSIDE {
            lab.outside.sh(&format!("ip addr add {address} dev lo nodad"));
        }
        lab
    }

    /// Attaches devices to one link of the gateway, `lan9`, as 10.12.0.2 and fd12::2, and so on.
    /// Returns the switch, which must live as long as the link.
    pub fn share_link(&self, devices: &[&Namespace]) -> Namespace {
        let switch = Namespace::new();
        switch.sh("ip link add switch type bridge; ip link set switch up");
        let link = |inside: &Namespace, name: &str, number: usize| {
            switch.sh(&format!(
                "ip link add port{number} type veth peer name {name} netns {}
                 ip link set port{number} master switch up",
                inside.thread
            ));
            inside.sh(&format!(
                "ip addr add 10.12.0.{number}/24 dev {name}
                 ip addr add fd12::{number}/64 dev {name} nodad
                 ip link set {name} up"
            ));
        };
        link(&self.gateway, "lan9", 1);
        for (number, device) in (2..).zip(devices) {
            link(device, "eth0", number);
            device.sh("ip route add default via 10.12.0.1; ip -6 route add default via fd12::1");
        }
        switch
    }

    /// Another outside behind `wan1` of the gateway, which has no route there: 198.51.101.2, and
    /// there also [`OUTSIDE`].
    pub fn second_outside(&self) -> Namespace {
        let second = Namespace::new();
        self.gateway.sh(&format!(
            "ip link add wan1 type veth peer name eth0 netns {}
             ip addr add 198.51.101.1/24 dev wan1; ip link set wan1 up",
            second.thread
        ));
        second.sh("ip addr add 198.51.101.2/24 dev eth0; ip link set eth0 up
             ip route add default via 198.51.101.1");
        for address in OUTSIDE {
            second.sh(&format!("ip addr add {address} dev lo nodad"));
        }
        second
    }

    /// A configuration with these tables.
    pub fn config(tables: &str) -> GatewayConfig {
        let text = format!("{CONFIG}{tables}");
        GatewayConfig::parse(&text, Path::new("gateway.toml")).expect("configuration")
    }
}

/// Whether the test cannot run here and may be left out: not root, and `POLYRAIL_ALLOW_SKIP`
/// lists `netns`.
pub fn may_skip() -> bool {
    let allowed = std::env::var("POLYRAIL_ALLOW_SKIP").unwrap_or_default();
    let skip = !geteuid().is_root() && allowed.split(',').any(|name| name.trim() == "netns");
    if skip {
        // Not by `println!`, which the test runner keeps to itself when a test passes.
        let _ = writeln!(std::io::stdout(), "SKIP netns: network namespaces need root");
    }
    skip
}

/// Sends one datagram from inside and returns the error or the answer that comes back in time,
/// with the answer's sender.
pub fn ask(from: &Namespace, to: &str, text: &str) -> std::io::Result<(SocketAddr, Vec<u8>)> {
    let (to, text) = (to.parse::<SocketAddr>().expect("address"), text.to_owned());
    from.run(move || {
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        // Connected: it hears of ICMP errors, and only of answers from where it asked.
        socket.connect(to)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send(text.as_bytes())?;
        let mut buffer = [0; 2048];
        let (length, sender) = socket.recv_from(&mut buffer)?;
        Ok((sender, buffer[..length].to_vec()))
    })
}

/// Answers every datagram to an address with the sender's address, until the namespace ends.
pub fn reflect(inside: &Namespace, address: &str) {
    let address: SocketAddr = address.parse().expect("address");
    inside.run(move || {
        let socket = UdpSocket::bind(address).expect("bind");
        thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((_, sender)) = socket.recv_from(&mut buffer) {
                // Best effort.
                let _ = socket.send_to(sender.ip().to_string().as_bytes(), sender);
            }
        });
    });
}

/// Sends an ICMP echo request from inside to an IPv4 address; the error that comes back, if any.
pub fn ping(from: &Namespace, to: &str) -> std::io::Result<()> {
    let to = SocketAddr::new(to.parse().expect("address"), 0);
    from.run(move || {
        let mut socket = Socket::new(Domain::for_address(to), Type::RAW, Some(Protocol::ICMPV4))?;
        socket.connect(&to.into())?;
        socket.set_read_timeout(Some(PATIENCE))?;
        // Type 8, code 0; the checksum of all else being zero is the complement of the type.
        socket.send(&[8, 0, 0xf7, 0xff, 0, 0, 0, 0])?;
        let mut buffer = [0; 256];
        let length = socket.read(&mut buffer)?;
        assert_eq!(buffer[..length][20], 0, "an echo reply");
        Ok(())
    })
}

/// How long an answer may take.
pub const PATIENCE: Duration = Duration::from_secs(2);

const CONFIG: &str = r#"
[tls]
certificate = "c.pem"
key = "k.pem"
authority = "a.pem"
[cloud]
name = "cloud"
addresses = ["198.51.100.2:4433"]
[[carrier]]
name = "wan"
interface = "wan0"
"#;
