//! The keys that secrets are encrypted with: the first encrypts, all of them decrypt.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use comeback_store::SealedSecret;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Bytes of a key.
const KEY: usize = 32;

/// Keys for secrets. Printed, it tells their ids and nothing else.
#[derive(Clone, Default)]
pub struct Keyring(Vec<Arc<SealKey>>);

struct SealKey {
    id: String,
    key: LessSafeKey,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| key.id.as_str())).finish()
    }
}

/// Why a secret cannot be decrypted here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No key with this id is configured.
    #[error("it is encrypted with the key {0}, which this server does not have (COMEBACK_SECRET_KEY)")]
    UnknownKey(String),
    /// The text was changed or cut.
    #[error("it was changed, or moved from another name, after it was encrypted")]
    Damaged,
}

impl Keyring {
    /// Keys of 32 bytes in base64 or hexadecimal, with commas or line ends between them. Whatever is wrong with one is told without
    /// telling the key.
    pub fn read(text: &str) -> Result<Keyring, String> {
        let parts = text.split([',', '\n', '\r']).map(str::trim).filter(|part| !part.is_empty());
        let keys: Vec<_> = parts
            .enumerate()
            .map(|(n, part)| {
                let bytes = decoded(part).ok_or_else(|| {
                    format!("key {} is not 32 bytes in base64 or hexadecimal (openssl rand -hex 32)", n + 1)
                })?;
                SealKey::new(&bytes).map(Arc::new)
            })
            .collect::<Result<_, String>>()?;
        if keys.is_empty() {
            return Err("it holds no key".into());
        }
        Ok(Keyring(keys))
    }

    /// Whether secrets can be encrypted at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The id of the key that encrypts.
    pub fn current(&self) -> Option<&str> {
        self.0.first().map(|key| key.id.as_str())
    }

    /// Encrypts a value for one name in one namespace: the id of the key, and nonce, ciphertext and tag. Nothing without a key or
    /// without randomness.
    pub fn seal(&self, namespace: &str, name: &str, value: &str) -> Option<(String, Vec<u8>)> {
        let key = self.0.first()?;
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).ok()?;
        let mut text = value.as_bytes().to_vec();
        let aad = Aad::from(bound_to(namespace, name));
        key.key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut text).ok()?;
        Some((key.id.clone(), [&nonce[..], &text].concat()))
    }

    /// The value.
    pub fn open(&self, secret: &SealedSecret) -> Result<String, OpenError> {
        let key = self.0.iter().find(|key| key.id == secret.key_id);
        let key = key.ok_or_else(|| OpenError::UnknownKey(secret.key_id.clone()))?;
        let (nonce, sealed) = secret.sealed.split_at_checked(NONCE_LEN).ok_or(OpenError::Damaged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| OpenError::Damaged)?;
        let mut text = sealed.to_vec();
        let aad = Aad::from(bound_to(&secret.namespace, &secret.name));
        let opened = key.key.open_in_place(nonce, aad, &mut text).map_err(|_| OpenError::Damaged)?;
        String::from_utf8(opened.to_vec()).map_err(|_| OpenError::Damaged)
    }
}

impl SealKey {
    fn new(bytes: &[u8; KEY]) -> Result<SealKey, String> {
        let hash = Sha256::new_with_prefix(b"comeback secret key\0").chain_update(bytes).finalize();
        let id = hash[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        let key = UnboundKey::new(&CHACHA20_POLY1305, bytes).map_err(|_| "is no key".to_owned())?;
        Ok(SealKey { id, key: LessSafeKey::new(key) })
    }
}

/// A sealed value is good under its own name only.
fn bound_to(namespace: &str, name: &str) -> Vec<u8> {
    [namespace.as_bytes(), b"\0", name.as_bytes()].concat()
}

fn decoded(text: &str) -> Option<[u8; KEY]> {
    if text.len() == 2 * KEY {
        let digits: Option<Vec<u8>> = (0..KEY)
            .map(|i| text.get(2 * i..2 * i + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok()))
            .collect();
        if let Some(bytes) = digits {
            return bytes.try_into().ok();
        }
    }
    [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD]
        .iter()
        .find_map(|alphabet| alphabet.decode(text).ok())
        .and_then(|bytes| bytes.try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use comeback_core::Timestamp;

    fn sealed(keys: &Keyring, value: &str) -> SealedSecret {
        let (key_id, sealed) = keys.seal("red", "stripe", value).expect("it is encrypted");
        let (created_at, updated_at) = (Timestamp(0), Timestamp(0));
        let (namespace, name) = ("red".to_owned(), "stripe".to_owned());
        SealedSecret { namespace, name, version: 1, key_id, sealed, created_at, updated_at, updated_by: None }
    }

    #[test]
    fn a_value_is_read_again_under_its_own_name_and_key_only() {
        let (one, two) = ("11".repeat(32), STANDARD.encode([2; 32]));
        let old = Keyring::read(&one).unwrap();
        let secret = sealed(&old, "sk_live_1");
        assert_eq!(old.open(&secret).as_deref(), Ok("sk_live_1"));
        assert!(!secret.sealed.windows(9).any(|part| part == b"sk_live_1"), "it is encrypted");
        assert_ne!(sealed(&old, "sk_live_1").sealed, secret.sealed, "each time another");
        let both = Keyring::read(&format!("{two}, {one}")).unwrap();
        assert_eq!(both.open(&secret).as_deref(), Ok("sk_live_1"));
        assert_ne!(both.current(), old.current());
        let other = Keyring::read(&two).unwrap();
        assert_eq!(other.open(&secret), Err(OpenError::UnknownKey(secret.key_id.clone())));
        for moved in [
            SealedSecret { namespace: "blue".into(), ..secret.clone() },
            SealedSecret { name: "paypal".into(), ..secret.clone() },
            SealedSecret { sealed: secret.sealed[..5].to_vec(), ..secret.clone() },
            SealedSecret { sealed: secret.sealed.iter().map(|byte| byte ^ 1).collect(), ..secret.clone() },
        ] {
            assert_eq!(old.open(&moved), Err(OpenError::Damaged));
        }
    }

    #[test]
    fn keys_are_32_bytes_and_never_printed() {
        for bad in ["", " , ", "short", &"1".repeat(63), "not base64 at all but long enough to be one !!"] {
            let why = Keyring::read(bad).unwrap_err();
            assert!(bad.trim().len() < 4 || !why.contains(bad), "{why}");
        }
        let keys = Keyring::read(&"ab".repeat(32)).unwrap();
        assert!(!format!("{keys:?}").contains("abab"), "{keys:?}");
        assert!(Keyring::default().seal("a", "b", "c").is_none());
    }
}
