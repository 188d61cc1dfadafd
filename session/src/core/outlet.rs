//! Where frames go.

use polyrail_model::Unit;

use crate::event::TunnelKey;

/// The way out to the tunnels. Each call hands over whole frames, at most 16,384 bytes, that belong
/// into one unit of the tunnel.
pub trait Outlet {
    /// Takes frames for the tunnel and returns the room that it has left, in bytes.
    fn send(&mut self, tunnel: TunnelKey, unit: Unit, frames: &[u8]) -> usize;

    /// The [`Unit::Data`] with this tag, sent over the tunnel before, need not arrive any more.
    fn withdraw(&mut self, tunnel: TunnelKey, tag: u64);
}
