//! A small resolver for the lab: it knows the lab's names and answers over UDP and TCP.
//!
//! It counts what it was asked over each transport, so that a test sees which way a query went.
//! The client half encodes one question and reads the addresses of the answer.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use polyrail_emulator::namespace::Namespace;

use crate::addresses::{Family, SERVER, SERVER_NAME, SERVER_NAME_V4, SERVER_NAME_V6};

const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;
const HEADER: usize = 12;
/// Response, recursion desired and available.
const FLAGS_ANSWER: u16 = 0x8180;
const CODE_NO_SUCH_NAME: u16 = 3;
const TIME_TO_LIVE_S: u32 = 60;
const PATIENCE: Duration = Duration::from_secs(10);

/// How many questions came over each transport.
#[derive(Debug, Default)]
pub struct Asked {
    /// Over UDP.
    pub udp: AtomicUsize,
    /// Over TCP.
    pub tcp: AtomicUsize,
    /// Of these, at its IPv6 address.
    pub tcp_v6: AtomicUsize,
}

/// Starts the resolver on port 53 of the server's namespace, both families.
///
/// # Errors
/// When the port is taken.
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
///
/// # Errors
/// When no answer comes, or it is no answer.
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

/// Asks over TCP, several questions down one connection.
///
/// # Errors
/// When an answer does not come or is no answer.
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
    // Identifier 0x7072, recursion desired, one question.
    let mut message = vec![0x70, 0x72, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        ensure!(!label.is_empty() && label.len() < 64, "not a host name: {name}");
        message.push(u8::try_from(label.len())?);
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    let kind = if family == Family::V4 { TYPE_A } else { TYPE_AAAA };
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&1u16.to_be_bytes());
    Ok(message)
}

/// The answer to one question; `None` for what is not a question.
fn answer(query: &[u8]) -> Option<Vec<u8>> {
    let (name, end) = name_at(query, HEADER)?;
    let kind = u16::from_be_bytes([*query.get(end)?, *query.get(end + 1)?]);
    let question = query.get(HEADER..end + 4)?;
    let records = records(&name, kind);
    let code = if records.is_none() { CODE_NO_SUCH_NAME } else { 0 };
    let records = records.unwrap_or_default();
    let mut message = query.get(..2)?.to_vec();
    message.extend_from_slice(&(FLAGS_ANSWER | code).to_be_bytes());
    message.extend_from_slice(&[0, 1, 0, u8::try_from(records.len()).ok()?, 0, 0, 0, 0]);
    message.extend_from_slice(question);
    for data in records {
        // The name is the question's, at offset 12.
        message.extend_from_slice(&[0xc0, 0x0c]);
        message.extend_from_slice(&kind.to_be_bytes());
        message.extend_from_slice(&1u16.to_be_bytes());
        message.extend_from_slice(&TIME_TO_LIVE_S.to_be_bytes());
        message.extend_from_slice(&u16::try_from(data.len()).ok()?.to_be_bytes());
        message.extend_from_slice(&data);
    }
    Some(message)
}

/// The data of the records; `None` when the name does not exist.
fn records(name: &str, kind: u16) -> Option<Vec<Vec<u8>>> {
    let (v4, v6) = match name {
        SERVER_NAME => (true, true),
        SERVER_NAME_V4 => (true, false),
        SERVER_NAME_V6 => (false, true),
        _ => return None,
    };
    Some(match kind {
        TYPE_A if v4 => vec![SERVER.v4.octets().to_vec()],
        TYPE_AAAA if v6 => vec![SERVER.v6.octets().to_vec()],
        _ => Vec::new(),
    })
}

/// The name at an offset, and the offset after it. Compression is followed only as an end.
fn name_at(message: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*message.get(at)?);
        if length >= 0xc0 {
            return Some((labels.join("."), at + 2));
        }
        if length == 0 {
            return Some((labels.join(".").to_ascii_lowercase(), at + 1));
        }
        let label = message.get(at + 1..at + 1 + length)?;
        labels.push(String::from_utf8_lossy(label).into_owned());
        at += 1 + length;
    }
}

fn addresses(message: &[u8]) -> Result<Vec<IpAddr>> {
    ensure!(message.len() >= HEADER && message[..2] == [0x70, 0x72], "not the answer asked for");
    let code = message[3] & 15;
    ensure!(code == 0, "the resolver answers with code {code}");
    let (_, after) = name_at(message, HEADER).context("question")?;
    let mut at = after + 4;
    let mut found = Vec::new();
    for _ in 0..u16::from_be_bytes([message[6], message[7]]) {
        let (_, after) = name_at(message, at).context("record")?;
        let Some(&[high, low]) = message.get(after + 8..after + 10) else { bail!("cut record") };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let data = message.get(after + 10..after + 10 + length).context("cut record")?;
        if let Ok(octets) = <[u8; 4]>::try_from(data) {
            found.push(IpAddr::from(octets));
        } else if let Ok(octets) = <[u8; 16]>::try_from(data) {
            found.push(IpAddr::from(octets));
        }
        at = after + 10 + length;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_have_the_servers_addresses() {
        for family in Family::BOTH {
            let asked = question(SERVER_NAME, family).unwrap();
            let answered = answer(&asked).unwrap();
            assert_eq!(addresses(&answered).unwrap(), vec![SERVER.of(family)]);
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_and_a_missing_family_is_empty() {
        let unknown = answer(&question("nobody.test", Family::V4).unwrap()).unwrap();
        assert!(addresses(&unknown).is_err());
        let missing = answer(&question(SERVER_NAME_V4, Family::V6).unwrap()).unwrap();
        assert!(addresses(&missing).unwrap().is_empty());
    }

    #[test]
    fn a_cut_message_is_no_question() {
        let asked = question(SERVER_NAME, Family::V4).unwrap();
        for length in 0..asked.len() - 2 {
            assert!(answer(&asked[..length]).is_none(), "cut at {length}");
        }
    }
}
