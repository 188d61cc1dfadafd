//! The proof in a JOIN: that it comes from the process that opened the session.

use polyrail_model::SessionId;
use ring::hmac;

/// HMAC-SHA256 under the key exported by the HELLO's connection, over a label, the session and
/// the path counter.
pub(crate) fn join_proof(key: &[u8; 32], session: SessionId, counter: u64) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), &message(session, counter));
    let mut proof = [0; 32];
    proof.copy_from_slice(tag.as_ref());
    proof
}

/// Whether the proof is valid; compares in constant time.
pub(crate) fn verify(key: &[u8; 32], session: SessionId, counter: u64, proof: &[u8; 32]) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::verify(&key, &message(session, counter), proof).is_ok()
}

/// The `n`-th session's id; unpredictable without the seed.
pub(crate) fn session_id(seed: &[u8; 32], n: u64) -> SessionId {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, seed), &n.to_be_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&tag.as_ref()[..16]);
    SessionId(id)
}

fn message(session: SessionId, counter: u64) -> Vec<u8> {
    let mut message = LABEL.to_vec();
    message.extend_from_slice(&session.0);
    message.extend_from_slice(&counter.to_be_bytes());
    message
}

const LABEL: &[u8] = b"polyrail join 1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_is_valid_for_one_key_session_and_counter() {
        let (key, id) = ([7; 32], SessionId([1; 16]));
        let proof = join_proof(&key, id, 3);
        assert!(verify(&key, id, 3, &proof));
        assert!(!verify(&[8; 32], id, 3, &proof));
        assert!(!verify(&key, SessionId([2; 16]), 3, &proof));
        assert!(!verify(&key, id, 4, &proof));
    }

    #[test]
    fn session_ids_differ() {
        assert_ne!(session_id(&[1; 32], 0), session_id(&[1; 32], 1));
        assert_ne!(session_id(&[1; 32], 0), session_id(&[2; 32], 0));
    }
}
