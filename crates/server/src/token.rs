//! Lease tokens: task and run number with a MAC. Opaque to clients.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use comeback_core::TaskId;
use comeback_engine::LeaseRef;
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::RwLock;
use sha2::Sha256;
use subtle::ConstantTimeEq;
use uuid::Uuid;

/// Signs and verifies lease tokens. All servers of a database share the key. Tokens are valid in one epoch: after a
/// restore the same task and number may be leased again, and an old token must not match.
pub struct Tokens {
    key: [u8; 32],
    current: RwLock<EpochKey>,
}

struct EpochKey {
    epoch: String,
    /// MAC state with the key of the epoch; each proof starts from a copy.
    begun: Hmac<Sha256>,
}

/// Length of a token: task, number, proof.
const LENGTH: usize = 16 + 4 + 16;

impl Tokens {
    /// Tokens with this key in an epoch.
    pub fn new(key: [u8; 32], epoch: &str) -> Tokens {
        Tokens { key, current: RwLock::new(EpochKey::new(&key, epoch)) }
    }

    /// Enters an epoch: tokens of other epochs become invalid. True if the epoch is new.
    pub fn enter(&self, epoch: &str) -> bool {
        if self.current.read().epoch == epoch {
            return false;
        }
        *self.current.write() = EpochKey::new(&self.key, epoch);
        true
    }

    /// A token for a lease, valid in this namespace only.
    pub fn seal(&self, lease: LeaseRef, namespace: &str) -> String {
        let mut bytes = [0; LENGTH];
        bytes[..16].copy_from_slice(lease.task.0.as_bytes());
        bytes[16..20].copy_from_slice(&lease.number.to_be_bytes());
        let proof = self.proof(&bytes[..20], namespace);
        bytes[20..].copy_from_slice(&proof);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Verifies a token. `None` if it is forged or of another namespace.
    pub fn open(&self, token: &str, namespace: &str) -> Option<LeaseRef> {
        let mut bytes = [0; LENGTH];
        if URL_SAFE_NO_PAD.decode_slice(token, &mut bytes) != Ok(LENGTH) {
            return None;
        }
        let proof = self.proof(&bytes[..20], namespace);
        if !bool::from(proof.ct_eq(&bytes[20..])) {
            return None;
        }
        let task = Uuid::from_slice(&bytes[..16]).ok()?;
        let number = u32::from_be_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
        Some(LeaseRef { task: TaskId(task), number })
    }

    fn proof(&self, about: &[u8], namespace: &str) -> [u8; 16] {
        let mut mac = self.current.read().begun.clone();
        mac.update(about);
        mac.update(namespace.as_bytes());
        let whole = mac.finalize().into_bytes();
        let mut half = [0; 16];
        half.copy_from_slice(&whole[..16]);
        half
    }
}

/// MAC with the key padded to the block size.
fn keyed(key: &[u8; 32]) -> Hmac<Sha256> {
    let mut block = [0; 64];
    block[..32].copy_from_slice(key);
    Hmac::<Sha256>::new(&block.into())
}

impl EpochKey {
    /// Derives the key of an epoch. The first epoch uses the stored key, as in versions without epochs.
    fn new(key: &[u8; 32], epoch: &str) -> EpochKey {
        let mut begun = keyed(key);
        if !epoch.is_empty() {
            begun.update(b"lease epoch ");
            begun.update(epoch.as_bytes());
            begun = keyed(&begun.finalize().into_bytes().into());
        }
        EpochKey { epoch: epoch.to_owned(), begun }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_for_the_key_that_sealed_it() {
        let lease = LeaseRef { task: TaskId(Uuid::from_u128(7)), number: 3 };
        let tokens = Tokens::new([1; 32], "");
        let token = tokens.seal(lease, "a");
        assert_eq!(tokens.open(&token, "a"), Some(lease));
        assert_eq!(tokens.open(&token, "b"), None);
        assert_eq!(Tokens::new([2; 32], "").open(&token, "a"), None);
    }

    #[test]
    fn a_token_opens_in_its_epoch_only() {
        let lease = LeaseRef { task: TaskId(Uuid::from_u128(7)), number: 3 };
        let tokens = Tokens::new([1; 32], "");
        let first = tokens.seal(lease, "a");
        assert!(!tokens.enter(""), "a restart");
        assert_eq!(tokens.open(&first, "a"), Some(lease));
        assert!(tokens.enter("x"), "a restore");
        assert_eq!(tokens.open(&first, "a"), None);
        let second = tokens.seal(lease, "a");
        assert_ne!(first, second);
        assert_eq!(Tokens::new([1; 32], "x").open(&second, "a"), Some(lease), "another instance");
        assert_eq!(Tokens::new([1; 32], "y").open(&second, "a"), None, "another restore of the same backup");
    }

    #[test]
    fn a_token_that_was_touched_does_not_open() {
        let tokens = Tokens::new([1; 32], "");
        let token = tokens.seal(LeaseRef { task: TaskId(Uuid::from_u128(7)), number: 3 }, "a");
        for i in 0..token.len() {
            let mut touched: Vec<u8> = token.bytes().collect();
            touched[i] = if touched[i] == b'A' { b'B' } else { b'A' };
            assert_eq!(tokens.open(&String::from_utf8(touched).expect("ascii"), "a"), None, "{i}");
        }
        for text in ["", "x", "é", &token[1..], &format!("{token}A")] {
            assert_eq!(tokens.open(text, "a"), None, "{text}");
        }
    }
}
