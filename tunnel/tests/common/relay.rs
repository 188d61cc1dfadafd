//! A relay between the two ends that holds flights until the test releases them, and records them.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use super::{World, loopback};

/// Holds what each side sends until the test lets it pass.
pub struct Relay {
    listener: TcpListener,
    upstream: SocketAddr,
    pub links: Vec<Link>,
}

/// One connection through the relay.
pub struct Link {
    client: TcpStream,
    server: TcpStream,
    /// The bytes held for the server and for the client.
    up: Vec<u8>,
    down: Vec<u8>,
    /// All that the client sent.
    pub sent: Vec<u8>,
}

impl Relay {
    pub fn new(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind(loopback()).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener, upstream, links: Vec::new() }
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// Runs the world until neither side has anything more to say.
    pub fn settle(&mut self, world: &mut World) {
        let mut idle = 0;
        while idle < 3 {
            world.step();
            idle = if self.gather() > 0 { 0 } else { idle + 1 };
        }
    }

    /// Lets what the clients sent pass, and the servers answer.
    pub fn pass_up(&mut self, world: &mut World) {
        for link in &mut self.links {
            let bytes = std::mem::take(&mut link.up);
            link.server.write_all(&bytes).unwrap();
        }
        self.settle(world);
    }

    /// The same in pieces, each of which the servers take in by itself.
    pub fn pass_up_in(&mut self, world: &mut World, piece: usize) {
        for link in &mut self.links {
            for bytes in std::mem::take(&mut link.up).chunks(piece) {
                link.server.write_all(bytes).unwrap();
                world.step();
            }
        }
        self.settle(world);
    }

    /// Lets what the servers sent pass, and the clients answer.
    pub fn pass_down(&mut self, world: &mut World) {
        for link in &mut self.links {
            let bytes = std::mem::take(&mut link.down);
            link.client.write_all(&bytes).unwrap();
        }
        self.settle(world);
    }

    /// Takes connections and bytes in; returns how much there was.
    fn gather(&mut self) -> usize {
        let mut found = 0;
        while let Ok((client, _)) = self.listener.accept() {
            let server = TcpStream::connect(self.upstream).unwrap();
            for socket in [&client, &server] {
                socket.set_nonblocking(true).unwrap();
                socket.set_nodelay(true).unwrap();
            }
            let (up, down, sent) = (Vec::new(), Vec::new(), Vec::new());
            self.links.push(Link { client, server, up, down, sent });
            found += 1;
        }
        for link in &mut self.links {
            let from = link.up.len();
            found += read_all(&mut link.client, &mut link.up);
            link.sent.extend_from_slice(&link.up[from..]);
            found += read_all(&mut link.server, &mut link.down);
        }
        found
    }
}

fn read_all(socket: &mut TcpStream, into: &mut Vec<u8>) -> usize {
    let mut buffer = [0; 65_536];
    let mut total = 0;
    loop {
        match socket.read(&mut buffer) {
            Ok(read @ 1..) => {
                into.extend_from_slice(&buffer[..read]);
                total += read;
            }
            Ok(0) => return total,
            Err(error) => {
                let ended = [ErrorKind::WouldBlock, ErrorKind::ConnectionReset];
                assert!(ended.contains(&error.kind()), "{error}");
                return total;
            }
        }
    }
}
