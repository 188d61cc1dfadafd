//! Real lookups with name servers on loopback, which answer or do not.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};

use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};

use super::*;

/// A name server that never answers.
fn dead() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// A name server that answers queries of type A until the test ends. Its answers are late, because
/// hickory prefers the faster server.
fn live() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut query) {
            std::thread::sleep(Duration::from_millis(20));
            let end = 12 + query[12..length].iter().position(|&byte| byte == 0).unwrap() + 5;
            let is_a = query[end - 3] == 1;
            let mut answer = query[..end].to_vec();
            // A response without error, with one question and at most one answer.
            answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
            if is_a {
                // The question's name, A, IN, not to be cached, 9.0.0.1.
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 9, 0, 0, 1]);
            }
            let _ = socket.send_to(&answer, from);
        }
    });
    address
}

fn resolver(servers: &[SocketAddr]) -> TokioResolver {
    let server = |address: &SocketAddr| {
        let mut connection = ConnectionConfig::udp();
        connection.port = address.port();
        NameServerConfig::new(address.ip(), true, vec![connection])
    };
    let config = ResolverConfig::from_parts(None, vec![], servers.iter().map(server).collect());
    let provider = TokioRuntimeProvider::default();
    build(Resolver::builder_with_config(config, provider)).unwrap()
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test)
}

#[test]
fn dead_name_server_does_not_delay_lookups() {
    let (dead, live) = (dead(), live());
    run(async {
        let resolver = resolver(&[dead.local_addr().unwrap(), live]);
        for i in 0..10 {
            let (begun, name) = (Instant::now(), format!("host-{i}.example."));
            let found = addresses(&resolver, &HostName::new(&name).unwrap()).await;
            assert_eq!(found.unwrap(), [IpAddr::from([9, 0, 0, 1])]);
            assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        }
    });
}

#[test]
fn lookup_uses_as_many_sockets_as_it_is_charged() {
    let servers = [dead(), dead(), dead()];
    run(async {
        let resolver = resolver(&servers.each_ref().map(|one| one.local_addr().unwrap()));
        let name = HostName::new("host.example").unwrap();
        let wait = tokio::time::timeout(Duration::from_secs(2), addresses(&resolver, &name));
        wait.await.unwrap_err();
    });
    let mut sources = BTreeSet::new();
    for (index, server) in servers.iter().enumerate() {
        let mut query = [0; 512];
        while let Ok((_, from)) = server.recv_from(&mut query) {
            sources.insert((index, from));
        }
    }
    assert_eq!(sources.len(), SOCKETS_MAX);
}
