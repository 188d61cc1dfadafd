//! The way from a session to its tunnels.

use polyrail_model::Unit;

use crate::event::TunnelKey;

/// Sends frames over tunnels. Each call hands over whole frames, at most 16,384 bytes, as one unit
/// of the tunnel.
pub trait Outlet {
    /// Sends frames over the tunnel and returns its remaining room, in bytes.
    fn send(&mut self, tunnel: TunnelKey, unit: Unit, frames: &[u8]) -> usize;

    /// Withdraws the [`Unit::Data`] with this tag: it need not arrive any more.
    fn withdraw(&mut self, tunnel: TunnelKey, tag: u64);
}
