//! A foreign peer: rustls over a blocking socket, controlled by the test.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use polyrail_identity::IdentityPaths;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

/// Accepts every certificate.
#[derive(Debug)]
struct Credulous;

impl ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A blocking TLS client.
pub struct RawClient {
    pub tcp: TcpStream,
    pub tls: ClientConnection,
    /// All received bytes.
    pub wire: Vec<u8>,
}

impl RawClient {
    /// Connects, without beginning the handshake.
    pub fn connect(peer: SocketAddr, alpn: &[&[u8]], identity: Option<&IdentityPaths>) -> Self {
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Credulous));
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(paths) => {
                let chain = vec![CertificateDer::from_pem_file(&paths.certificate).unwrap()];
                let key = PrivateKeyDer::from_pem_file(&paths.key).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let name = ServerName::try_from("cloud").unwrap();
        let tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let tcp = TcpStream::connect(peer).unwrap();
        tcp.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self { tcp, tls, wire: Vec::new() }
    }

    /// Completes the handshake; false when it fails.
    pub fn shake(&mut self) -> bool {
        while self.tls.is_handshaking() || self.tls.wants_write() {
            while self.tls.wants_write() {
                self.tls.write_tls(&mut self.tcp).unwrap();
            }
            if self.tls.is_handshaking() && !self.read() {
                return false;
            }
        }
        true
    }

    /// Reads once; false at the end of the stream or on an error.
    pub fn read(&mut self) -> bool {
        let mut buffer = [0; 4096];
        match self.tcp.read(&mut buffer) {
            Ok(read @ 1..) => {
                self.wire.extend_from_slice(&buffer[..read]);
                self.tls.read_tls(&mut &buffer[..read]).unwrap();
                self.tls.process_new_packets().is_ok()
            }
            _ => false,
        }
    }

    /// Writes bytes to the socket past TLS.
    pub fn write_bare(&mut self, bytes: &[u8]) {
        self.tcp.write_all(bytes).unwrap();
    }

    /// Ends the stream without the notice of TLS.
    pub fn cut(&mut self) {
        self.tcp.shutdown(Shutdown::Write).unwrap();
    }

    /// Resets the connection.
    pub fn reset(self) {
        socket2::SockRef::from(&self.tcp).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// The payload lengths of the TLS records in a stream.
pub fn record_lengths(mut wire: &[u8]) -> Vec<usize> {
    let mut lengths = Vec::new();
    while wire.len() >= 5 {
        let length = usize::from(u16::from_be_bytes([wire[3], wire[4]]));
        lengths.push(length);
        wire = wire.get(5 + length..).unwrap_or_default();
    }
    lengths
}
