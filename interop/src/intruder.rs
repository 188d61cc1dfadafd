//! A gateway made by the lab: a TLS connection to the cloud with a certificate of choice, and
//! frames as `docs/protocol.md` specifies them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use polyrail_emulator::namespace::Namespace;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::client;
use crate::configuration::CLOUD_NAME;

/// The application protocol of tunnels.
pub const ALPN: &str = "polyrail/1";

/// A TLS connection.
pub type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A connection to the cloud from a namespace, after its handshake. `authority` is a folder with
/// `ca.crt`; `identity` is a folder and the name of a certificate in it.
///
/// # Errors
/// The cloud refuses, or does not answer within `patience`.
pub fn dial(
    namespace: &Namespace,
    cloud: SocketAddr,
    authority: &Path,
    identity: Option<(&Path, &str)>,
    alpn: &str,
    patience: Duration,
) -> Result<Tls> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.join("ca.crt"))?)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots);
    let mut config = match identity {
        Some((folder, name)) => {
            let chain = CertificateDer::pem_file_iter(folder.join(format!("{name}.crt")))?
                .collect::<Result<Vec<_>, _>>()?;
            let key = PrivateKeyDer::from_pem_file(folder.join(format!("{name}.key")))?;
            builder.with_client_auth_cert(chain, key)?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    let stream = client::connect(namespace, cloud)?;
    stream.set_read_timeout(Some(patience))?;
    let name = ServerName::try_from(CLOUD_NAME)?;
    let connection = ClientConnection::new(Arc::new(config), name)?;
    let mut tls = StreamOwned::new(connection, stream);
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock)?;
    }
    Ok(tls)
}

/// A tunnel of its own session.
#[derive(Debug)]
pub struct Intruder {
    tls: Tls,
}

impl Intruder {
    /// Greets over a new connection and waits for the answer.
    ///
    /// # Errors
    /// The cloud closes or does not answer.
    pub fn greet(mut tls: Tls, instance: [u8; 16]) -> Result<Self> {
        let mut hello = instance.to_vec();
        put(&mut hello, 1);
        hello.push(0);
        put(&mut hello, 3);
        hello.extend_from_slice(b"own");
        put(&mut hello, 65_536);
        put(&mut hello, 16 << 20);
        tls.write_all(&frame(0x01, &hello))?;
        let mut answer = [0; 4096];
        let length = tls.read(&mut answer).context("the answer to HELLO")?;
        anyhow::ensure!(length > 1 && answer[1] == 0x03, "the cloud does not welcome the intruder");
        Ok(Self { tls })
    }

    /// Sends frames, and discards what the cloud has sent.
    ///
    /// # Errors
    /// The cloud has closed the connection.
    pub fn send(&mut self, unit: &[u8]) -> Result<()> {
        self.exchange(unit).map(drop)
    }

    /// Sends frames, and returns what the cloud has sent.
    ///
    /// # Errors
    /// The cloud has closed the connection.
    pub fn exchange(&mut self, unit: &[u8]) -> Result<Vec<u8>> {
        self.tls.write_all(unit)?;
        let mut bytes = vec![0; 65_536];
        self.tls.sock.set_nonblocking(true)?;
        let read = self.tls.read(&mut bytes);
        self.tls.sock.set_nonblocking(false)?;
        let length = match read {
            Ok(0) => anyhow::bail!("the cloud has closed"),
            Ok(length) => length,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error.into()),
        };
        bytes.truncate(length);
        Ok(bytes)
    }
}

/// A frame of a type with a payload of at most 16,380 bytes.
pub fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x01, kind];
    bytes.extend_from_slice(&(payload.len() as u16).to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Appends a number in its shortest form (RFC 9000, section 16).
pub fn put(out: &mut Vec<u8>, number: u64) {
    match number {
        0..0x40 => out.push(number as u8),
        0x40..0x4000 => out.extend_from_slice(&(number as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => {
            out.extend_from_slice(&(number as u32 | 0x8000_0000).to_be_bytes());
        }
        _ => out.extend_from_slice(&(number | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}
