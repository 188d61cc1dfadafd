//! Connection ids: how datagrams find their connection, here and in a load balancer.
//!
//! An id of the cloud's is 16 bytes: the server's number (2 bytes, big-endian), a check (the first
//! 4 bytes of HMAC-SHA-256 over number and nonce), a random nonce (10 bytes), whose first byte
//! names the worker (see [`worker_of`]). A load balancer routes by the first two bytes; with the
//! key, which is derived from the server's private key, it can also recognise foreign ids.
//! Stateless reset tokens (RFC 9000 10.3) are derived alike, so that a restarted cloud resets the
//! connections of its predecessor. Their key also depends on the listener's address: a listener
//! cannot reset the connections of another one, to which a datagram with a foreign address may have
//! gone astray (RFC 9000 21.11).

use std::net::SocketAddr;

use boring::hash::hmac_sha256;
use boring::rand::rand_bytes;

/// The length of our ids.
pub(super) const CID_LENGTH: usize = 16;

/// Any connection id (RFC 9000 17.2: at most 20 bytes), as a key without allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cid {
    length: u8,
    bytes: [u8; quiche::MAX_CONN_ID_LEN],
}

impl Cid {
    /// `None` when it is too long to be one.
    pub(super) fn new(id: &[u8]) -> Option<Self> {
        let mut bytes = [0; quiche::MAX_CONN_ID_LEN];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        Some(Self { length: id.len() as u8, bytes })
    }
}

/// Creates and recognises the cloud's ids.
pub(super) struct Mint {
    server_id: u16,
    /// The worker that its ids name, and the number of workers.
    worker: (u8, u8),
    cid_key: [u8; 32],
    reset_key: [u8; 32],
}

impl Mint {
    /// Derives the keys from a secret and a listening address that survive a restart.
    pub(super) fn new(
        secret: &[u8],
        server_id: u16,
        address: SocketAddr,
        worker: (u8, u8),
    ) -> Self {
        let resets = format!("polyrail stateless resets {address}");
        Self {
            server_id,
            worker,
            cid_key: keyed(secret, b"polyrail connection ids"),
            reset_key: keyed(secret, resets.as_bytes()),
        }
    }

    pub(super) fn cid(&self) -> [u8; CID_LENGTH] {
        let mut id = [0; CID_LENGTH];
        id[..2].copy_from_slice(&self.server_id.to_be_bytes());
        id[NONCE].copy_from_slice(&random::<10>());
        id[WORKER] = naming(self.worker, id[WORKER]);
        let check = self.check(&id);
        id[CHECK].copy_from_slice(&check);
        id
    }

    /// Whether this key created an id, on this or another server.
    pub(super) fn made(&self, id: &[u8]) -> bool {
        match <&[u8; CID_LENGTH]>::try_from(id) {
            Ok(id) => self.check(id) == id[CHECK],
            Err(_) => false,
        }
    }

    pub(super) fn reset_token(&self, id: &[u8]) -> u128 {
        let mut token = [0; 16];
        token.copy_from_slice(&keyed(&self.reset_key, id)[..16]);
        u128::from_be_bytes(token)
    }

    fn check(&self, id: &[u8; CID_LENGTH]) -> [u8; 4] {
        let mut content = [0; 12];
        content[..2].copy_from_slice(&id[..2]);
        content[2..].copy_from_slice(&id[NONCE]);
        let mut check = [0; 4];
        check.copy_from_slice(&keyed(&self.cid_key, &content)[..4]);
        check
    }
}

/// The worker that a connection id names, one of `workers`: its byte [`WORKER`] modulo their
/// number. The first id of a client is random, so that it names one of them, too. An id without
/// this byte names none.
pub(super) fn worker_of(id: &[u8], workers: u8) -> Option<u8> {
    id.get(WORKER).map(|byte| byte % workers.max(1))
}

/// One of the bytes that name a worker, chosen by a random one.
fn naming((worker, workers): (u8, u8), random: u8) -> u8 {
    let choices = (u8::MAX - worker) / workers;
    // With 256 choices any byte does.
    worker + workers * choices.checked_add(1).map_or(random, |choices| random % choices)
}

/// HMAC-SHA-256.
pub(super) fn keyed(key: &[u8], content: &[u8]) -> [u8; 32] {
    // Fails only if memory is exhausted.
    hmac_sha256(key, content).expect("HMAC of a few bytes")
}

/// Random bytes of the kernel.
pub(super) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand_bytes(&mut bytes).expect("the kernel has random bytes");
    bytes
}

/// The unencrypted header of a datagram's first packet (RFC 8999 5, RFC 9000 17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outline<'a> {
    pub(super) destination: &'a [u8],
    pub(super) form: Form,
}

/// The kind of a packet, for routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// 1-RTT.
    Short,
    /// Of QUIC version 1, the first of a connection.
    Initial,
    /// Of QUIC version 1, another kind.
    Long,
    /// Of another version.
    Foreign,
}

/// Reads the header of a datagram, without allocating; `None` if it is not QUIC.
pub(super) fn outline(datagram: &[u8]) -> Option<Outline<'_>> {
    let first = *datagram.first()?;
    if first & LONG_HEADER == 0 {
        let destination = datagram.get(1..1 + CID_LENGTH)?;
        return (first & FIXED_BIT != 0).then_some(Outline { destination, form: Form::Short });
    }
    let version = u32::from_be_bytes(datagram.get(1..5)?.try_into().ok()?);
    let length = usize::from(*datagram.get(5)?);
    let destination = datagram.get(6..6 + length)?;
    let form = match version {
        quiche::PROTOCOL_VERSION if first & FIXED_BIT == 0 => return None,
        quiche::PROTOCOL_VERSION if length > quiche::MAX_CONN_ID_LEN => return None,
        quiche::PROTOCOL_VERSION if first & LONG_KIND == 0 => Form::Initial,
        quiche::PROTOCOL_VERSION => Form::Long,
        // Version negotiation is for clients.
        0 => return None,
        _ => Form::Foreign,
    };
    Some(Outline { destination, form })
}

/// The place of the worker in an id; a client's first id has at least 8 bytes (RFC 9000 7.2).
pub(super) const WORKER: usize = 6;
const CHECK: std::ops::Range<usize> = 2..6;
const NONCE: std::ops::Range<usize> = 6..CID_LENGTH;
const LONG_HEADER: u8 = 0x80;
const FIXED_BIT: u8 = 0x40;
const LONG_KIND: u8 = 0x30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_contain_the_server_number_and_are_recognised() {
        let at = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let mint = Mint::new(b"secret", 0x0102, at(443), (0, 1));
        let id = mint.cid();
        assert_eq!(id[..2], [1, 2]);
        assert!(mint.made(&id) && Mint::new(b"secret", 7, at(444), (0, 1)).made(&id));
        assert!(!Mint::new(b"other", 0x0102, at(443), (0, 1)).made(&id));
        for at in 0..CID_LENGTH {
            let mut forged = id;
            forged[at] ^= 1;
            assert!(!mint.made(&forged), "byte {at}");
        }
        assert!(!mint.made(&id[..15]));
        assert_ne!(mint.cid(), mint.cid());
        assert_eq!(
            mint.reset_token(&id),
            Mint::new(b"secret", 7, at(443), (0, 1)).reset_token(&id)
        );
        assert_ne!(
            mint.reset_token(&id),
            Mint::new(b"secret", 7, at(444), (0, 1)).reset_token(&id)
        );
        assert_ne!(mint.reset_token(&id), mint.reset_token(&mint.cid()));
    }

    #[test]
    fn ids_name_their_worker() {
        let at = SocketAddr::from(([192, 0, 2, 1], 443));
        for workers in [1, 2, 3, 64, 255] {
            for worker in [0, workers / 2, workers - 1] {
                let mint = Mint::new(b"secret", 1, at, (worker, workers));
                let ids: Vec<_> = (0..100).map(|_| mint.cid()).collect();
                assert!(
                    ids.iter().all(|id| worker_of(id, workers) == Some(worker) && mint.made(id))
                );
                let bytes: std::collections::BTreeSet<u8> =
                    ids.iter().map(|id| id[WORKER]).collect();
                assert!(bytes.len() > usize::from(64 / workers), "{workers}: {}", bytes.len());
            }
        }
        assert_eq!(
            (worker_of(&[7; 6], 4), worker_of(&[7; 8], 4), worker_of(&[7; 8], 0)),
            (None, Some(3), Some(0))
        );
    }

    #[test]
    fn malformed_headers_are_rejected() {
        let mut initial = vec![0xc3, 0, 0, 0, 1, 8];
        initial.extend_from_slice(&[7; 8]);
        let read = outline(&initial).unwrap();
        assert_eq!((read.form, read.destination), (Form::Initial, &[7; 8][..]));
        initial[0] = 0xe3;
        assert_eq!(outline(&initial).unwrap().form, Form::Long);
        initial[4] = 9;
        assert_eq!(outline(&initial).unwrap().form, Form::Foreign);
        initial[4] = 0;
        assert_eq!(outline(&initial), None, "version negotiation");
        assert_eq!(outline(&[0xc3, 0, 0, 0, 1, 21]), None);
        assert_eq!(outline(&[&[0xc3, 0, 0, 0, 1, 21][..], &[0; 40]].concat()), None);
        assert_eq!(outline(&[0x43; 16]), None, "too short for an id");
        assert_eq!(outline(&[0x43; 17]).unwrap().form, Form::Short);
        assert_eq!(outline(&[0x03; 17]), None, "the fixed bit");
        assert_eq!(outline(&[]), None);
    }
}
