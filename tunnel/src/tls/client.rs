//! The gateway's side: connects to the cloud over a carrier.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use polyrail_identity::{Clock, IdentityError, PeerVerifier, TlsIdentity};
use polyrail_model::Identity;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;

use super::connection::{Start, TlsTunnel};
use super::engine::{Engine, Plan};
use super::tickets::{TicketStore, Tickets};
use super::verifier::{TlsTime, Verifier};
use super::{ALPN, TICKETS_MAX, provider};
use crate::phase::TunnelPhase;
use crate::{CarrierSpec, CloseReason, Tunnel, carrier};

/// Makes tunnels to one cloud.
#[derive(Debug)]
pub struct Client {
    clock: Arc<dyn Clock>,
    config: ClientConfig,
    verifier: Arc<PeerVerifier>,
    server_name: ServerName<'static>,
    /// By carrier and address, because a ticket seen by two carriers would link them. At
    /// `CARRIERS_MAX` all are dropped.
    tickets: BTreeMap<(String, SocketAddr), Arc<TicketStore>>,
}

impl Client {
    /// Prepares connections to the cloud named `cloud`.
    ///
    /// # Errors
    /// TLS cannot use the identity or the name.
    pub fn new(
        identity: TlsIdentity,
        cloud: Identity,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, IdentityError> {
        let verifier =
            Arc::new(PeerVerifier::of_cloud(identity.clone(), cloud.clone(), clock.clone()));
        let config = set_up(&identity, &clock, &verifier)?;
        let server_name = ServerName::try_from(cloud.as_str().to_owned())
            .map_err(|_| IdentityError::Tls(format!("{cloud} is not valid as a server name")))?;
        Ok(Self { clock, config, verifier, server_name, tickets: BTreeMap::new() })
    }

    /// Uses another identity from now on; tickets earned under the old one are dropped. Tunnels
    /// that exist stay: ask [`TlsIdentity::is_revoked`] about their peers.
    ///
    /// # Errors
    /// TLS cannot use it; the old one stays.
    pub fn set_identity(&mut self, identity: TlsIdentity) -> Result<(), IdentityError> {
        self.config = set_up(&identity, &self.clock, &self.verifier)?;
        self.verifier.set_identity(identity);
        // Also for the connects in progress, which keep the old identity.
        self.tickets.values().for_each(|tickets| tickets.forget());
        self.tickets.clear();
        Ok(())
    }

    /// Begins to connect to the cloud at `peer` over a carrier.
    ///
    /// # Errors
    /// The carrier cannot be used at all; such a failure counts like a tunnel's end.
    pub fn connect(
        &mut self,
        now: Instant,
        spec: &CarrierSpec,
        peer: SocketAddr,
    ) -> Result<Box<dyn Tunnel>, CloseReason> {
        let socket = carrier::connect(spec, peer)?;
        let key = (spec.name.clone(), peer);
        if self.tickets.len() >= CARRIERS_MAX && !self.tickets.contains_key(&key) {
            self.tickets.clear();
        }
        let (verifier, options) = (self.verifier.clone(), spec.options.clone());
        let store = self.tickets.entry(key).or_default().clone();
        let tickets = Arc::new(Tickets::new(store, verifier.clone()));
        let mut config = self.config.clone();
        config.resumption = Resumption::store(tickets.clone());
        config.enable_early_data = spec.early;
        let engine = Engine::client(Plan { config, name: self.server_name.clone(), tickets });
        let start = Start { socket, engine, verifier, peer, options };
        Ok(Box::new(TlsTunnel::new(now, TunnelPhase::Connecting, start)))
    }
}

fn set_up(
    identity: &TlsIdentity,
    clock: &Arc<dyn Clock>,
    verifier: &Arc<PeerVerifier>,
) -> Result<ClientConfig, IdentityError> {
    let time = Arc::new(TlsTime(clock.clone()));
    let mut config = ClientConfig::builder_with_details(Arc::new(provider()), time)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| IdentityError::Tls(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier(verifier.clone())))
        .with_client_cert_resolver(identity.key());
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

/// Carriers times addresses whose tickets are kept, of [`TICKETS_MAX`] tickets each.
const CARRIERS_MAX: usize = 64;
const _: () = assert!(CARRIERS_MAX * TICKETS_MAX <= 512);
