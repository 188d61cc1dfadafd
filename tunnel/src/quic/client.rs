//! The gateway's side: connects to the cloud over a carrier.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use polyrail_identity::{Clock, IdentityError, PeerVerifier, TlsIdentity};
use polyrail_model::Identity;
use quiche::{Config, ConnectionId};

use super::admission::Admission;
use super::cid::random;
use super::connection::Engine;
use super::context::{self, CLIENT_CID_LENGTH};
use super::ids::Ids;
use super::socket::Udp;
use super::tickets::Tickets;
use super::tunnel::{Port, QuicTunnel};
use super::{ALPN, qlog};
use crate::carrier::internal;
use crate::{CarrierSpec, CloseReason, Tunnel};

/// Opens QUIC tunnels to one cloud.
pub struct Client {
    cloud: Identity,
    judge: Arc<PeerVerifier>,
    /// With early data, and without.
    early: Config,
    plain: Config,
    tickets: Tickets,
}

impl Client {
    /// Prepares connections to the cloud named `cloud`.
    ///
    /// # Errors
    /// TLS cannot use the identity.
    pub fn new(
        identity: TlsIdentity,
        cloud: Identity,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, IdentityError> {
        let judge = Arc::new(PeerVerifier::of_cloud(identity.clone(), cloud.clone(), clock));
        let early = context::of_client(&identity, &judge, true)?;
        let plain = context::of_client(&identity, &judge, false)?;
        Ok(Self { cloud, judge, early, plain, tickets: Tickets::default() })
    }

    /// Uses another identity from now on and drops the tickets of the old one. Existing tunnels
    /// stay: ask [`TlsIdentity::is_revoked`] about their peers.
    ///
    /// # Errors
    /// TLS cannot use it; the old one stays.
    pub fn set_identity(&mut self, identity: TlsIdentity) -> Result<(), IdentityError> {
        let early = context::of_client(&identity, &self.judge, true)?;
        let plain = context::of_client(&identity, &self.judge, false)?;
        (self.early, self.plain) = (early, plain);
        self.judge.set_identity(identity);
        // Not cleared: connections in progress still store theirs in the old collection.
        self.tickets = Tickets::default();
        Ok(())
    }

    /// Begins to connect to the cloud at `peer` over a carrier. With [`CarrierSpec::early`] and a
    /// ticket, [`TunnelEvent::Early`](crate::TunnelEvent::Early) follows at once.
    ///
    /// # Errors
    /// The carrier cannot be used at all; such a failure counts like a tunnel's end.
    pub fn connect(
        &mut self,
        now: Instant,
        spec: &CarrierSpec,
        peer: SocketAddr,
    ) -> Result<Box<dyn Tunnel>, CloseReason> {
        let udp = Udp::connect(spec, peer)?;
        let place = self.tickets.place(&spec.name, peer);
        let ticket = place.newest();
        let early = spec.early && ticket.is_some();
        let config = if early { &mut self.early } else { &mut self.plain };
        adapt(config, spec, peer)?;
        let id = random::<CLIENT_CID_LENGTH>();
        let id = ConnectionId::from_ref(&id);
        let name = Some(self.cloud.as_str());
        let mut connection = quiche::connect(name, &id, udp.local_addr(), peer, config)
            .map_err(|error| broken(&error))?;
        if let Some(folder) = &spec.qlog {
            qlog::begin(&mut connection, folder, &spec.name);
        }
        if let Some(ticket) = ticket
            && let Err(error) = connection.set_session(&ticket)
        {
            tracing::debug!(%error, "cannot use a ticket");
        }
        let admission = Admission::new(self.judge.clone(), Some(place), None);
        let options = spec.options.clone();
        let mut engine = Engine::new(now, connection, admission, Ids::default(), peer, options);
        engine.settle(&udp, now);
        Ok(Box::new(QuicTunnel::new(engine, Port::Own(udp))))
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("cloud", &self.cloud).finish_non_exhaustive()
    }
}

/// Sets what differs between carriers.
fn adapt(config: &mut Config, spec: &CarrierSpec, peer: SocketAddr) -> Result<(), CloseReason> {
    let congestion = spec.options.congestion.as_deref().unwrap_or("bbr");
    let control = context::control(congestion).ok_or_else(|| CloseReason::CongestionControl {
        wanted: congestion.to_owned(),
        available: context::CONTROLS.to_owned(),
    })?;
    context::set_control(config, control).map_err(|error| broken(&error))?;
    let protocol = context::carrier_protocol(&spec.name);
    config.set_application_protos(&[ALPN, &protocol]).map_err(|error| broken(&error))?;
    config.set_max_send_udp_payload_size(context::payload_max(peer));
    config.set_initial_rtt(spec.rtt.unwrap_or(context::RTT_UNKNOWN));
    let idle_ms = spec.options.user_timeout.as_millis();
    config.set_max_idle_timeout(idle_ms.try_into().unwrap_or(u64::MAX));
    Ok(())
}

fn broken(error: &quiche::Error) -> CloseReason {
    internal("begin QUIC", &std::io::Error::other(error.to_string()))
}
