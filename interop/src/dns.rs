//! A small resolver for the names of the lab, over UDP and TCP, and a client for it.
//!
//! The resolver counts queries by transport, so that a test sees which transport a query used.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use polyrail_emulator::namespace::Namespace;

use crate::addresses::{Family, SERVER, SERVER_NAME, SERVER_NAME_V4, SERVER_NAME_V6};

const TIME_TO_LIVE_S: u32 = 60;
/// The identifier of all questions.
const ID: u16 = 0x7072;
const PATIENCE: Duration = Duration::from_secs(10);

/// The queries received over each transport.
#[derive(Debug, Default)]
pub struct Asked {
    /// Over UDP.
    pub udp: AtomicUsize,
    /// Over TCP.
    pub tcp: AtomicUsize,
    /// Over TCP at the IPv6 address.
    pub tcp_v6: AtomicUsize,
}

/// Starts the resolver on port 53 of the server's namespace for both families.
pub fn serve(server: &Namespace) -> Result<Arc<Asked>> {
    let asked = Arc::new(Asked::default());
    for family in Family::BOTH {
        let address = SERVER.at(family, 53);
        let counts = Arc::clone(&asked);
        let socket = server.run(|| UdpSocket::bind(address))?.context("resolver, UDP")?;
        std::thread::spawn(move || answer_udp(&socket, &counts));
        let counts = Arc::clone(&asked);
        let listener = server.run(|| TcpListener::bind(address))?.context("resolver, TCP")?;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counts = Arc::clone(&counts);
                std::thread::spawn(move || answer_tcp(stream, &counts, family));
            }
        });
    }
    Ok(asked)
}

/// Asks `resolver` over UDP for the addresses of `name`, from the calling thread's namespace.
pub fn ask_udp(resolver: SocketAddr, name: &str, family: Family) -> Result<Vec<IpAddr>> {
    let any: IpAddr = match family_of(resolver) {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(resolver)?;
    socket.send(&question(name, family)?)?;
    let mut answer = [0; 1500];
    let length = socket.recv(&mut answer).context("DNS answer over UDP")?;
    addresses(&answer[..length])
}

/// Asks several questions over one TCP connection.
pub fn ask_tcp(resolver: SocketAddr, names: &[&str], family: Family) -> Result<Vec<Vec<IpAddr>>> {
    let mut stream = TcpStream::connect_timeout(&resolver, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answers = Vec::new();
    for name in names {
        write_message(&mut stream, &question(name, family)?)?;
        let answer = read_message(&mut stream).context("DNS answer over TCP")?;
        answers.push(addresses(&answer)?);
    }
    Ok(answers)
}

fn family_of(address: SocketAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}

fn answer_udp(socket: &UdpSocket, asked: &Asked) {
    let mut packet = [0; 1500];
    while let Ok((length, from)) = socket.recv_from(&mut packet) {
        asked.udp.fetch_add(1, Ordering::Relaxed);
        if let Some(answer) = answer(&packet[..length]) {
            // A client that has left needs no answer.
            let _ = socket.send_to(&answer, from);
        }
    }
}

fn answer_tcp(mut stream: TcpStream, asked: &Asked, family: Family) {
    while let Ok(message) = read_message(&mut stream) {
        asked.tcp.fetch_add(1, Ordering::Relaxed);
        if family == Family::V6 {
            asked.tcp_v6.fetch_add(1, Ordering::Relaxed);
        }
        let Some(answer) = answer(&message) else { return };
        if write_message(&mut stream, &answer).is_err() {
            return;
        }
    }
}

fn read_message(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut message)?;
    Ok(message)
}

fn write_message(stream: &mut TcpStream, message: &[u8]) -> Result<()> {
    let mut framed = u16::try_from(message.len())?.to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed)?;
    Ok(())
}

fn question(name: &str, family: Family) -> Result<Vec<u8>> {
    let mut message = Message::new(ID, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    let kind = if family == Family::V4 { RecordType::A } else { RecordType::AAAA };
    message.add_query(Query::query(Name::from_ascii(name)?, kind));
    Ok(message.to_vec()?)
}

/// The answer to one question; `None` if the message is not a question.
fn answer(query: &[u8]) -> Option<Vec<u8>> {
    let mut message = Message::from_vec(query).ok()?;
    let question = message.queries.first()?.clone();
    message.metadata.message_type = MessageType::Response;
    message.metadata.recursion_available = true;
    let name = question.name().to_ascii().to_ascii_lowercase();
    let families: &[Family] = match name.trim_end_matches('.') {
        SERVER_NAME => &Family::BOTH,
        SERVER_NAME_V4 => &[Family::V4],
        SERVER_NAME_V6 => &[Family::V6],
        _ => {
            message.metadata.response_code = ResponseCode::NXDomain;
            &[]
        }
    };
    for address in families.iter().map(|family| SERVER.of(*family)) {
        let kind = if address.is_ipv4() { RecordType::A } else { RecordType::AAAA };
        if question.query_type() == kind {
            let (name, data) = (question.name().clone(), RData::from(address));
            message.add_answer(Record::from_rdata(name, TIME_TO_LIVE_S, data));
        }
    }
    message.to_vec().ok()
}

fn addresses(message: &[u8]) -> Result<Vec<IpAddr>> {
    let message = Message::from_vec(message)?;
    let code = message.metadata.response_code;
    ensure!(message.metadata.id == ID, "the answer to another question");
    ensure!(code == ResponseCode::NoError, "the resolver answers with {code}");
    Ok(message.answers.iter().filter_map(|record| record.data.ip_addr()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_have_addresses_and_an_unknown_name_is_an_error() {
        let ask = |name, family| addresses(&answer(&question(name, family).unwrap()).unwrap());
        for family in Family::BOTH {
            assert_eq!(ask(SERVER_NAME, family).unwrap(), vec![SERVER.of(family)]);
        }
        assert!(ask("nobody.test", Family::V4).is_err());
        assert!(ask(SERVER_NAME_V4, Family::V6).unwrap().is_empty());
    }
}
