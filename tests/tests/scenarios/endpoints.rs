//! Endpoints without links: a test hands the frames of one to the other.

use std::time::Instant;

use polyrail_model::{
    Destination, HostName, Identity, InstanceId, PathWish, TunnelMode, Unit, UserId,
};
use polyrail_session::wire::{Decoder, Frame};
use polyrail_session::{Endpoint, Event, FlowKey, Outlet, Settings, TunnelInfo, TunnelKey};

/// Collects the frames sent on each tunnel.
#[derive(Default)]
struct Wire(Vec<(TunnelKey, Vec<u8>)>);

impl Outlet for Wire {
    fn send(&mut self, tunnel: TunnelKey, _unit: Unit, frames: &[u8]) -> usize {
        self.0.push((tunnel, frames.to_vec()));
        16_384
    }

    fn withdraw(&mut self, _tunnel: TunnelKey, _tag: u64) {}
}

pub fn gateway(now: Instant) -> Endpoint {
    Endpoint::gateway(now, Settings::default(), InstanceId([7; 16]))
}

/// A cloud whose session ids derive from this byte: another byte is another process.
pub fn cloud(now: Instant, process: u8) -> Endpoint {
    Endpoint::cloud(now, Settings::default(), [process; 32])
}

/// Opens a flow of the gateway that begins with some bytes.
pub fn post(gateway: &mut Endpoint, now: Instant) -> FlowKey {
    let name = HostName::new("a.example").unwrap();
    let flow = gateway.open(now, UserId(1), Destination::Name(name, 80)).unwrap();
    gateway.write(now, flow, b"POST /pay");
    flow
}

pub fn info(carrier: &str, peer: &str, exporter: u8) -> TunnelInfo {
    TunnelInfo {
        carrier: carrier.to_owned(),
        peer: Identity::new(peer).unwrap(),
        exporter: Some([exporter; 32]),
        wish: PathWish::default(),
        mode: TunnelMode::Tls,
    }
}

pub fn up(endpoint: &mut Endpoint, now: Instant, key: usize, info: TunnelInfo) {
    endpoint.tunnel_up(now, TunnelKey(key), info);
    endpoint.tunnel_room(TunnelKey(key), 16_384);
}

/// Both ends of a tunnel, with the exporter of its number.
pub fn connect(gateway: &mut Endpoint, cloud: &mut Endpoint, now: Instant, key: usize, name: &str) {
    up(gateway, now, key, info(name, "cloud", key as u8));
    up(cloud, now, key, info("", "train-7", key as u8));
}

/// Everything that the endpoint sends now.
pub fn sent(endpoint: &mut Endpoint, now: Instant) -> Vec<u8> {
    let mut wire = Wire::default();
    endpoint.transmit(now, &mut wire);
    wire.0.into_iter().flat_map(|(_, frames)| frames).collect()
}

/// The frames that the endpoint sends on one tunnel now.
pub fn sent_on(endpoint: &mut Endpoint, now: Instant, key: usize) -> Vec<u8> {
    let mut wire = Wire::default();
    endpoint.transmit(now, &mut wire);
    let of_tunnel = wire.0.into_iter().filter(|(tunnel, _)| tunnel.0 == key);
    of_tunnel.flat_map(|(_, frames)| frames).collect()
}

pub fn events(endpoint: &mut Endpoint) -> Vec<Event> {
    std::iter::from_fn(|| endpoint.poll_event()).collect()
}

pub fn frames(bytes: &[u8], mut look: impl FnMut(&Frame<'_>)) {
    Decoder::default().feed(bytes, |frame| look(&frame)).unwrap();
}
