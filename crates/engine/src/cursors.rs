//! Cursors of the feed as callers see them: encrypted, so that they do not tell how much everybody has written.
//!
//! The same place gives the same text, in every process that shares the database, and each namespace has texts of its own. Cursors
//! that were given out in the clear before are read as well.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use comeback_store::{FeedCursor, PutIf, Store, StoreError};
use hmac::{Hmac, KeyInit, Mac};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::Sha256;

/// Where the key is kept; one per database.
const META: &str = "cursor_key";
const PREFIX: &str = "c";

/// Encrypts and decrypts the places of a feed.
pub struct Cursors {
    seal: LessSafeKey,
    mac: [u8; 32],
}

impl Cursors {
    /// The key that the database has, or a new one.
    pub(crate) async fn open(store: &dyn Store) -> Result<Cursors, StoreError> {
        let mut fresh = [0_u8; 32];
        getrandom::fill(&mut fresh).map_err(|error| StoreError::Unavailable(format!("no randomness: {error}")))?;
        let kept = match store.meta(META).await? {
            Some(kept) => kept,
            None => store.put_meta(META, &URL_SAFE_NO_PAD.encode(fresh), PutIf::Absent, None).await?,
        };
        let key = URL_SAFE_NO_PAD.decode(kept).ok().and_then(|key| Cursors::new(&key));
        key.ok_or_else(|| StoreError::Corrupt("the key of the cursors".into()))
    }

    fn new(key: &[u8]) -> Option<Cursors> {
        let derived = |what: &[u8]| -> Option<[u8; 32]> {
            let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
            mac.update(what);
            Some(mac.finalize().into_bytes().into())
        };
        let seal = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &derived(b"cursor seal")?).ok()?);
        Some(Cursors { seal, mac: derived(b"cursor nonce")? })
    }

    /// A place as the callers of a namespace see it.
    pub fn show(&self, namespace: &str, cursor: FeedCursor) -> String {
        let plain = cursor.to_string();
        let sealed = self.nonce(namespace, &plain).and_then(|nonce| {
            let mut text = plain.as_bytes().to_vec();
            let aad = Aad::from(namespace.as_bytes());
            self.seal.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut text).ok()?;
            Some([&nonce[..], &text].concat())
        });
        sealed.map_or(plain, |sealed| format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(sealed)))
    }

    /// The place that a caller of a namespace names; nothing where it is none.
    pub fn read(&self, namespace: &str, text: &str) -> Option<FeedCursor> {
        let Some(sealed) = text.strip_prefix(PREFIX) else { return text.parse().ok() };
        let sealed = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = sealed.to_vec();
        let opened = self.seal.open_in_place(nonce, Aad::from(namespace.as_bytes()), &mut text).ok()?;
        std::str::from_utf8(opened).ok()?.parse().ok()
    }

    /// Made of what is encrypted, so that the same place has the same text and no nonce is used for two.
    fn nonce(&self, namespace: &str, plain: &str) -> Option<[u8; NONCE_LEN]> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.mac).ok()?;
        mac.update(namespace.as_bytes());
        mac.update(b"\0");
        mac.update(plain.as_bytes());
        mac.finalize().into_bytes()[..NONCE_LEN].try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_in_the_same_words_and_tells_nothing() {
        let cursors = Cursors::new(&[7; 32]).unwrap();
        let at = |row: u64| FeedCursor { transaction: 0, row, item: 1, seq: 2 };
        let shown = cursors.show("red", at(7));
        assert_eq!(cursors.show("red", at(7)), shown);
        assert_eq!(cursors.read("red", &shown), Some(at(7)));
        assert_ne!(cursors.show("blue", at(7)), shown);
        assert_eq!(cursors.read("blue", &shown), None, "it is good in its own namespace only");
        let common = |other: &str| shown.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        assert!(common(&cursors.show("red", at(8))) < 6, "what follows does not look alike");
        assert_eq!(cursors.read("red", "f0-7-1-2"), Some(at(7)), "as they were given out before");
        for bad in ["", "c", "c!", "x", "cAAAA", &shown[..shown.len() - 1], &format!("{shown}A")] {
            assert_eq!(cursors.read("red", bad), None, "{bad}");
        }
        assert!(shown.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')), "{shown}");
        assert!(shown.len() < 100, "{shown}");
    }
}
