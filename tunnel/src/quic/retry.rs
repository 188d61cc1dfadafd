//! Tokens that prove a client's address (RFC 9000 8.1.2), without state on our side.
//!
//! A token contains its time and the connection id that the client chose first. A MAC binds it to
//! these, to the client's address and to the id that we gave. The key is random and lost with the
//! process.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::cid::{keyed, random};

/// Makes and checks tokens.
#[derive(Clone)]
pub(super) struct Retry {
    key: [u8; 32],
    begin: Instant,
}

impl Retry {
    pub(super) fn new(now: Instant) -> Self {
        Self { key: random(), begin: now }
    }

    /// A token for a client that chose `original` and must use `given`.
    pub(super) fn token(
        &self,
        now: Instant,
        peer: SocketAddr,
        original: &[u8],
        given: &[u8],
    ) -> Vec<u8> {
        let age_ms = now.saturating_duration_since(self.begin).as_millis() as u64;
        let mut token = age_ms.to_be_bytes().to_vec();
        token.extend_from_slice(original);
        let mac = self.mac(&token, peer, given);
        token.extend_from_slice(&mac);
        token
    }

    /// The id that the client chose first, if the token is ours, the client's, and not expired.
    pub(super) fn check<'a>(
        &self,
        now: Instant,
        peer: SocketAddr,
        given: &[u8],
        token: &'a [u8],
    ) -> Option<&'a [u8]> {
        let (content, mac) = token.split_at_checked(token.len().checked_sub(MAC)?)?;
        let (made_ms, original) = content.split_first_chunk::<8>()?;
        if original.len() > quiche::MAX_CONN_ID_LEN
            || !boring::memcmp::eq(&self.mac(content, peer, given), mac)
        {
            return None;
        }
        let made = self.begin + Duration::from_millis(u64::from_be_bytes(*made_ms));
        (now.saturating_duration_since(made) <= LIFETIME).then_some(original)
    }

    fn mac(&self, content: &[u8], peer: SocketAddr, given: &[u8]) -> [u8; MAC] {
        let mut all = content.to_vec();
        match peer.ip() {
            IpAddr::V4(ip) => all.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => all.extend_from_slice(&ip.octets()),
        }
        all.extend_from_slice(&peer.port().to_be_bytes());
        all.extend_from_slice(given);
        let mut mac = [0; MAC];
        mac.copy_from_slice(&keyed(&self.key, &all)[..MAC]);
        mac
    }
}

const MAC: usize = 16;
/// Long enough for a slow carrier's round trips and losses.
const LIFETIME: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_bound_to_address_ids_and_time() {
        let now = Instant::now();
        let retry = Retry::new(now);
        let peer: SocketAddr = "192.0.2.1:4000".parse().unwrap();
        let token = retry.token(now, peer, b"original", b"given");
        let checked = |now, peer, given, token: &[u8]| {
            retry.check(now, peer, given, token).map(<[u8]>::to_vec)
        };
        assert_eq!(checked(now, peer, b"given", &token), Some(b"original".to_vec()));
        assert_eq!(checked(now, "192.0.2.1:4001".parse().unwrap(), b"given", &token), None);
        assert_eq!(checked(now, "192.0.2.2:4000".parse().unwrap(), b"given", &token), None);
        assert_eq!(checked(now, peer, b"other", &token), None);
        let late = now + LIFETIME + Duration::from_secs(1);
        assert_eq!(checked(late, peer, b"given", &token), None);
        for at in 0..token.len() {
            let mut forged = token.clone();
            forged[at] ^= 1;
            assert_eq!(checked(now, peer, b"given", &forged), None, "byte {at}");
            assert_eq!(checked(now, peer, b"given", &token[..at]), None, "{at} bytes");
        }
        assert_eq!(Retry::new(now).check(now, peer, b"given", &token), None);
    }
}
