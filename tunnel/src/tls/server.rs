//! The cloud's side: accepts gateways.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use mio::net::TcpStream;
use polyrail_identity::{Clock, IdentityError, PeerVerifier, TlsIdentity};
use rustls::server::ServerSessionMemoryCache;
use rustls::{ServerConfig, ServerConnection};
use socket2::SockRef;

use super::connection::{Start, TlsTunnel};
use super::engine::Engine;
use super::verifier::{TlsTime, Verifier};
use super::{ALPN, EARLY_DATA_SKIPPED_MAX, TICKETS_MAX, provider};
use crate::carrier::{apply_options, internal};
use crate::phase::TunnelPhase;
use crate::{CloseReason, SocketOptions, Tunnel};

/// Makes tunnels from accepted connections.
#[derive(Debug)]
pub struct Server {
    options: SocketOptions,
    clock: Arc<dyn Clock>,
    sessions: Arc<ServerSessionMemoryCache>,
    config: Arc<ServerConfig>,
    verifier: Arc<PeerVerifier>,
}

/// The sessions that can be resumed. Only handshakes lock them.
#[derive(Clone, Debug)]
pub struct Sessions(Arc<ServerSessionMemoryCache>);

impl Default for Sessions {
    fn default() -> Self {
        Self(ServerSessionMemoryCache::new(SESSIONS_MAX))
    }
}

impl Server {
    /// Prepares to accept gateways.
    ///
    /// # Errors
    /// TLS cannot use the identity.
    pub fn new(
        identity: TlsIdentity,
        options: SocketOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, IdentityError> {
        Self::with_sessions(identity, options, clock, Sessions::default())
    }

    /// The same for one of several event loops: each resumes the sessions of all.
    ///
    /// # Errors
    /// As [`Server::new`].
    pub fn with_sessions(
        identity: TlsIdentity,
        options: SocketOptions,
        clock: Arc<dyn Clock>,
        Sessions(sessions): Sessions,
    ) -> Result<Self, IdentityError> {
        let verifier = Arc::new(PeerVerifier::of_gateways(identity.clone(), clock.clone()));
        let config = set_up(&identity, &clock, &sessions, &verifier)?;
        Ok(Self { options, clock, sessions, config, verifier })
    }

    /// Uses another identity from now on, also for judging in handshakes in progress. Older
    /// sessions may still be resumed if the new identity accepts their certificates. Existing
    /// tunnels stay: ask [`TlsIdentity::is_revoked`] about their peers.
    ///
    /// # Errors
    /// TLS cannot use it; the old one stays.
    pub fn set_identity(&mut self, identity: TlsIdentity) -> Result<(), IdentityError> {
        self.config = set_up(&identity, &self.clock, &self.sessions, &self.verifier)?;
        self.verifier.set_identity(identity);
        Ok(())
    }

    /// Begins the handshake on an accepted connection.
    ///
    /// # Errors
    /// The connection is closed already, or the kernel refuses an option.
    pub fn accept(
        &mut self,
        now: Instant,
        socket: TcpStream,
    ) -> Result<Box<dyn Tunnel>, CloseReason> {
        let peer = socket.peer_addr().map_err(|_| CloseReason::ClosedInHandshake)?;
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        apply_options(&SockRef::from(&socket), &self.options)?;
        let tls = ServerConnection::new(self.config.clone())
            .map_err(|error| internal("begin TLS", &std::io::Error::other(error)))?;
        let (verifier, options) = (self.verifier.clone(), self.options.clone());
        let start = Start { socket, engine: Engine::server(tls), verifier, peer, options };
        Ok(Box::new(TlsTunnel::new(now, TunnelPhase::Handshaking, start)))
    }
}

fn set_up(
    identity: &TlsIdentity,
    clock: &Arc<dyn Clock>,
    sessions: &Arc<ServerSessionMemoryCache>,
    verifier: &Arc<PeerVerifier>,
) -> Result<Arc<ServerConfig>, IdentityError> {
    let time = Arc::new(TlsTime(clock.clone()));
    let mut config = ServerConfig::builder_with_details(Arc::new(provider()), time)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| IdentityError::Tls(error.to_string()))?
        .with_client_cert_verifier(Arc::new(Verifier(verifier.clone())))
        .with_cert_resolver(identity.key());
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = sessions.clone();
    config.send_tls13_tickets = TICKETS_MAX;
    config.max_tls13_tickets = TICKETS_MAX;
    // Tickets are stateful: a session is removed from the store when it is resumed, so that its
    // early data is accepted once (RFC 8446 8.1).
    config.max_early_data_size = EARLY_DATA_SKIPPED_MAX;
    config.send_half_rtt_data = true;
    Ok(Arc::new(config))
}

/// Sessions that can be resumed, of all gateways together: 1,024 carriers of gateways with
/// [`TICKETS_MAX`] each, about 1 KiB a session. At the limit the oldest is evicted, and its
/// gateway's next handshake is a full one without early data.
const SESSIONS_MAX: usize = 1_024 * TICKETS_MAX;
