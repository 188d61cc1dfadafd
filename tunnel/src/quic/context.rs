//! The configuration of new connections: BoringSSL contexts and QUIC's parameters.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use boring::hash::MessageDigest;
use boring::pkey::PKey;
use boring::ssl::{
    AlpnError, SslContext, SslContextBuilder, SslMethod, SslRef, SslSignatureAlgorithm,
};
use polyrail_identity::{IdentityError, PeerVerifier, TlsIdentity};
use quiche::{BbrParams, Config, Connection};

use super::{
    ALPN, CIDS_MAX, FLOW_WINDOW, PATHS_MAX, STREAM_WINDOW, STREAMS_MAX, ServerOptions, datagrams,
    paths, verify,
};

/// The client's configuration, with early data or without.
pub(super) fn of_client(
    identity: &TlsIdentity,
    judge: &Arc<PeerVerifier>,
    early: bool,
) -> Result<Config, IdentityError> {
    let builder = builder(identity, judge)?;
    let mut config = config(builder, CLIENT_IDLE)?;
    if early {
        config.enable_early_data();
    }
    Ok(config)
}

/// The server's configuration. `ticket_key` survives a change of identity, so that sessions are
/// still resumed if the new identity accepts their certificates.
pub(super) fn of_server(
    identity: &TlsIdentity,
    judge: &Arc<PeerVerifier>,
    options: &ServerOptions,
    ticket_key: &[u8; 48],
) -> Result<Config, IdentityError> {
    let mut builder = builder(identity, judge)?;
    let default = control(&options.congestion).ok_or_else(|| unknown(&options.congestion))?;
    let mut wishes = BTreeMap::new();
    for (carrier, congestion) in &options.carrier_congestion {
        let control = control(congestion).ok_or_else(|| unknown(congestion))?;
        wishes.insert(carrier_protocol(carrier), control);
    }
    builder.set_alpn_select_callback(move |ssl, offered| select(ssl, offered, &wishes));
    let mut config = config(builder, options.socket.user_timeout)?;
    config.set_active_connection_id_limit(PATHS_MAX);
    set_control(&mut config, default).map_err(refused)?;
    config.set_ticket_key(ticket_key).map_err(refused)?;
    config.enable_early_data();
    Ok(config)
}

/// A congestion control of QUIC tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// One of `quiche`'s, by its name.
    Quiche(&'static str),
    /// The tunnels' own ([`Pacer`](super::pacer::Pacer)), above a window that does not bind.
    Rail,
}

/// A congestion control by the name that configurations use.
pub(super) fn control(name: &str) -> Option<Control> {
    match name {
        "rail" => Some(Control::Rail),
        "bbr" => Some(Control::Quiche(BBR)),
        "cubic" => Some(Control::Quiche("cubic")),
        "reno" => Some(Control::Quiche("reno")),
        _ => None,
    }
}

/// The names that [`control`] knows.
pub(super) const CONTROLS: &str = "rail bbr cubic reno";

/// Sets the congestion control of new connections.
pub(super) fn set_control(config: &mut Config, control: Control) -> Result<(), quiche::Error> {
    let Settings { name, bbr, window, part } = settings(control);
    config.set_custom_bbr_params(bbr);
    config.set_initial_congestion_window_packets(window);
    config.set_send_capacity_factor(1.0 / part as f64);
    config.set_cc_algorithm_name(name)
}

/// Sets that of a connection in its handshake. No effect after the first packet was sent; then the
/// default stays.
fn set_control_in_handshake(ssl: &mut SslRef, control: Control) {
    let Settings { name, bbr, window, part } = settings(control);
    let _ = <Connection>::set_custom_bbr_settings_in_handshake(ssl, bbr);
    let _ = <Connection>::set_initial_congestion_window_packets_in_handshake(ssl, window);
    let _ = <Connection>::set_send_capacity_factor_in_handshake(ssl, 1.0 / part as f64);
    let _ = <Connection>::set_cc_algorithm_name_in_handshake(ssl, name);
}

/// `quiche`'s settings of a congestion control.
struct Settings {
    name: &'static str,
    bbr: BbrParams,
    /// The initial window in packets.
    window: usize,
    /// Streams may fill this part of the free window, as a divisor.
    part: usize,
}

fn settings(control: Control) -> Settings {
    match control {
        Control::Quiche(name) => Settings { name, bbr: bbr(), window: WINDOW_INITIAL, part: 1 },
        Control::Rail => {
            Settings { name: BBR, bbr: unbound(), window: UNBOUND_PACKETS, part: UNBOUND_PART }
        }
    }
}

/// Parameters with which the window of `quiche`'s bbr never binds.
fn unbound() -> BbrParams {
    BbrParams { min_cwnd_packets: Some(UNBOUND_PACKETS), ..bbr() }
}

/// Whether a connection that has sent nothing yet has [`Control::Rail`].
pub(super) fn is_unbound(connection: &Connection) -> bool {
    let window = UNBOUND_PACKETS * quiche::MIN_CLIENT_INITIAL_LEN;
    paths::active(connection).is_some_and(|path| path.cwnd >= window)
}

/// The second protocol that a gateway offers and the cloud never selects: it names the carrier, so
/// that the cloud can choose the congestion control. It is a hash, to keep the name secret.
pub(super) fn carrier_protocol(carrier: &str) -> Vec<u8> {
    let digest = boring::hash::hash(MessageDigest::sha256(), carrier.as_bytes())
        .expect("SHA-256 of a short name");
    let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("polyrail-carrier/{hash}").into_bytes()
}

fn select<'a>(
    ssl: &mut SslRef,
    mut offered: &'a [u8],
    wishes: &BTreeMap<Vec<u8>, Control>,
) -> Result<&'a [u8], AlpnError> {
    let mut ours = None;
    while let Some((&length, rest)) = offered.split_first() {
        let Some((protocol, rest)) = rest.split_at_checked(usize::from(length)) else { break };
        if protocol == ALPN {
            ours = Some(protocol);
        } else if let Some(control) = wishes.get(protocol) {
            set_control_in_handshake(ssl, *control);
        }
        offered = rest;
    }
    ours.ok_or(AlpnError::ALERT_FATAL)
}

fn builder(
    identity: &TlsIdentity,
    judge: &Arc<PeerVerifier>,
) -> Result<SslContextBuilder, IdentityError> {
    let mut builder = SslContext::builder(SslMethod::tls()).map_err(refused)?;
    let (leaf, between) = identity.chain().split_first().ok_or_else(|| refused("no chain"))?;
    let leaf = verify::certificate(leaf).map_err(refused)?;
    builder.set_certificate(&leaf).map_err(refused)?;
    for link in between {
        let link = verify::certificate(link).map_err(refused)?;
        builder.add_extra_chain_cert(link).map_err(refused)?;
    }
    let key = PKey::private_key_from_der(identity.key_der()).map_err(refused)?;
    builder.set_private_key(&key).map_err(refused)?;
    builder.set_curves_list(GROUPS).map_err(refused)?;
    builder.set_verify_algorithm_prefs(SIGNATURES).map_err(refused)?;
    verify::install(&mut builder, judge.clone());
    Ok(builder)
}

fn config(builder: SslContextBuilder, idle: Duration) -> Result<Config, IdentityError> {
    let version = quiche::PROTOCOL_VERSION;
    let mut config = Config::with_boring_ssl_ctx_builder(version, builder).map_err(refused)?;
    config.set_max_idle_timeout(idle.as_millis().try_into().unwrap_or(u64::MAX));
    config.discover_pmtu(true);
    config.set_initial_max_data(FLOW_WINDOW);
    config.set_max_connection_window(FLOW_WINDOW);
    config.set_initial_max_stream_data_uni(STREAM_WINDOW);
    config.set_max_stream_window(STREAM_WINDOW);
    config.set_initial_max_streams_uni(STREAMS_MAX);
    config.set_active_connection_id_limit(CIDS_MAX);
    config.enable_dgram(true, datagrams::RECEIVED_MAX, datagrams::SENT_MAX);
    Ok(config)
}

/// bbr's parameters for radio links. By default more than 1.5 % of loss in a round ends a bandwidth
/// probe and limits the bytes in flight to 0.7 bandwidth-delay products or less until the next
/// probe, two seconds later. At 1 % of random loss that happens all the time.
///
/// By default a probe also fills a window of 2.25 such products until it finds loss: small messages
/// wait in a queue of more than a round trip. 1.5 products still exceed the pacing gain.
///
/// The lower bound of the window stays at ten packets: by default it is the initial window.
///
/// The other strategies for lowering the rate between probes (`bw_lo_reduction_strategy`) tolerate
/// random loss better, but after the loss of a whole window the rate falls to almost zero.
fn bbr() -> BbrParams {
    BbrParams {
        loss_threshold: Some(LOSS_THRESHOLD),
        min_cwnd_packets: Some(WINDOW_LEAST),
        probe_bw_up_cwnd_gain: Some(PROBE_WINDOW_GAIN),
        ..BbrParams::default()
    }
}

fn refused(error: impl std::fmt::Display) -> IdentityError {
    IdentityError::Tls(format!("QUIC: {error}"))
}

fn unknown(congestion: &str) -> IdentityError {
    refused(format!("congestion control {congestion:?} is none of: {CONTROLS}"))
}

/// The largest datagram: an Ethernet frame without the headers of IP and UDP.
pub(super) fn payload_max(peer: SocketAddr) -> usize {
    if peer.is_ipv4() { LONGEST } else { LONGEST - 20 }
}

/// The longest datagram over IPv4.
const LONGEST: usize = 1_472;

/// The length of a client's connection ids: its socket has only one connection.
pub(super) const CLIENT_CID_LENGTH: usize = 8;

/// The initial round-trip time of an unmeasured carrier (RFC 9002 6.2.2).
pub(super) const RTT_UNKNOWN: Duration = Duration::from_millis(333);

/// `quiche`'s name of its second version of bbr.
const BBR: &str = "bbr2_gcongestion";
/// That of Chromium's QUIC (`kInitialCongestionWindow`), paced. RFC 9002 7.2 recommends 10.
const WINDOW_INITIAL: usize = 32;
const WINDOW_LEAST: usize = 10;
/// The window that does not bind: `quiche` counts it in packets, whose length the path MTU decides.
/// It is a quarter of [`FLOW_WINDOW`] at most, because the peer renews its credit when half is
/// used: the credit must not bind either, and the free window, not the credit, must be what the
/// room of a stream shows.
const UNBOUND_PACKETS: usize = UNBOUND_WINDOW / LONGEST;
pub(super) const UNBOUND_WINDOW: usize = 4 << 20;
/// Streams accept a quarter of the free window at once: a number below the control stream's window,
/// so that it shows the bytes in flight.
pub(super) const UNBOUND_PART: usize = 4;

/// Far above the random loss of carriers at 350 km/h (0.21 and 1.35 %, POLYCORN 2), because it
/// varies between rounds; half of the loss that TCP's bbr tolerates.
const LOSS_THRESHOLD: f32 = 0.1;
/// Above the pacing gain of such a probe, 1.25.
const PROBE_WINDOW_GAIN: f32 = 1.5;
const CLIENT_IDLE: Duration = Duration::from_secs(60);
/// No post-quantum share: its ClientHello would need two datagrams.
const GROUPS: &str = "X25519:P-256:P-384";
/// The same as for the TLS tunnel.
const SIGNATURES: &[SslSignatureAlgorithm] = &[
    SslSignatureAlgorithm::ECDSA_SECP256R1_SHA256,
    SslSignatureAlgorithm::ED25519,
    SslSignatureAlgorithm::ECDSA_SECP384R1_SHA384,
    SslSignatureAlgorithm::RSA_PSS_RSAE_SHA256,
    SslSignatureAlgorithm::RSA_PSS_RSAE_SHA384,
    SslSignatureAlgorithm::RSA_PSS_RSAE_SHA512,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_connection_has_the_initial_window_of_its_control() {
        for (name, packets, unbound) in
            [("bbr", WINDOW_INITIAL, false), ("rail", UNBOUND_PACKETS, true)]
        {
            let mut config = Config::new(quiche::PROTOCOL_VERSION).unwrap();
            set_control(&mut config, control(name).unwrap()).unwrap();
            let id = quiche::ConnectionId::from_ref(&[1; CLIENT_CID_LENGTH]);
            let address = SocketAddr::from(([127, 0, 0, 1], 1));
            let connection: Connection =
                quiche::connect(None, &id, address, address, &mut config).unwrap();
            let window = paths::active(&connection).unwrap().cwnd;
            assert_eq!(window, packets * quiche::MIN_CLIENT_INITIAL_LEN, "{name}");
            assert_eq!(is_unbound(&connection), unbound, "{name}");
        }
    }
}
