//! The wire: frames and their encoding, as `docs/protocol.md` specifies them.
//!
//! Decoding never panics and never allocates more than the length of the frame. This module knows
//! the form of frames; the session knows their meaning.

mod codec;
mod field;
mod frame;
#[cfg(test)]
mod tests;

pub(crate) use codec::first;
pub use codec::{Decoder, WireError, encode};
pub use frame::*;
pub use polyrail_model::codec::NUMBER_MAX;
