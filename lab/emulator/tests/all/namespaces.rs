//! Namespaces are separate, hold by descriptor alone, and their children die with their parent.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::time::Duration;

use crate::common;
use polyrail_emulator::namespace::{Namespace, connect_veth};

/// Fresh namespaces; `None` if the test is skipped.
fn namespaces<const N: usize>() -> Option<[Namespace; N]> {
    (!common::skipped_without_root("netns")).then(|| [(); N].map(|()| Namespace::new().unwrap()))
}

#[test]
fn traffic_crosses_a_veth_pair_and_only_that() {
    let Some([a, b]) = namespaces() else { return };
    connect_veth((&a, "left"), (&b, "right")).unwrap();
    for (namespace, name, address) in [(&a, "left", "10.9.0.1"), (&b, "right", "10.9.0.2")] {
        namespace.ip(&format!("address add {address}/24 dev {name}")).unwrap();
        namespace.ip(&format!("link set {name} up")).unwrap();
    }
    let listener = b.run(|| TcpListener::bind("10.9.0.2:80")).unwrap().unwrap();
    let mut client = a.run(|| TcpStream::connect("10.9.0.2:80")).unwrap().unwrap();
    client.write_all(b"hello").unwrap();
    let mut got = [0; 5];
    listener.accept().unwrap().0.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    assert!(UdpSocket::bind("10.9.0.1:0").is_err(), "the address leaked to the host");
    let lonely = Namespace::new().unwrap();
    assert!(lonely.run(|| UdpSocket::bind("10.9.0.1:0")).unwrap().is_err());
    assert!(lonely.run(|| UdpSocket::bind("127.0.0.1:0")).unwrap().is_ok(), "lo is not up");
}

#[test]
fn a_namespace_is_opened_by_path_from_another_process() {
    let Some([a]) = namespaces() else { return };
    a.ip("link add marker type veth peer name other").unwrap();
    let enter = format!("--net={} ip -o link", a.path().display());
    let seen = Namespace::current().unwrap().tool("nsenter", &enter).unwrap();
    assert!(seen.contains("marker"), "{seen}");
    let failure = a.ip("link set nothing up").unwrap_err().to_string();
    assert!(failure.contains("nothing"), "{failure}");
    assert!(a.tool("no-such-tool", "").unwrap_err().to_string().contains("no-such-tool"));
}

#[test]
fn a_child_dies_with_the_thread_that_spawned_it() {
    let Some([a]) = namespaces() else { return };
    let mut child =
        std::thread::spawn(move || a.command("sleep").arg("60").spawn().unwrap()).join().unwrap();
    let status = common::wait_at_most(&mut child, Duration::from_secs(5));
    assert!(!status.success());
}

#[test]
fn a_private_resolver_is_seen_by_the_child_alone() {
    let Some([a]) = namespaces() else { return };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"nameserver 192.0.2.53\n").unwrap();
    let output = a
        .command_with_resolver("cat", file.path())
        .unwrap()
        .arg("/etc/resolv.conf")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "nameserver 192.0.2.53\n");
    assert!(!std::fs::read_to_string("/etc/resolv.conf").unwrap().contains("192.0.2.53"));
}

#[test]
fn a_sysctl_is_the_namespaces_own() {
    let Some([a, b]) = namespaces() else { return };
    a.sysctl("net.ipv4.ip_forward", "1").unwrap();
    let read = || std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
    assert_eq!(a.run(read).unwrap().trim(), "1");
    assert_eq!(b.run(read).unwrap().trim(), "0");
    assert!(a.sysctl("net.ipv4.no_such_key", "1").is_err());
}
