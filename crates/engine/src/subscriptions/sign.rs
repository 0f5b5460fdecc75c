//! Signatures, as Standard Webhooks 1.0 has them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

const PREFIX: &str = "whsec_";
/// Bytes that a secret may have.
const FEWEST: usize = 24;
const MOST: usize = 64;

/// The shared secret. It is stored only in its row.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a secret")
    }
}

impl Secret {
    /// A new random secret.
    pub fn new() -> Result<Secret, String> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
        Ok(Secret(format!("{PREFIX}{}", STANDARD.encode(bytes))))
    }

    /// Reads a secret that a caller gives.
    pub fn read(text: &str) -> Result<Secret, String> {
        let secret = Secret(text.to_owned());
        match secret.bytes() {
            Some(bytes) if (FEWEST..=MOST).contains(&bytes.len()) => Ok(secret),
            _ => Err(format!("must be {PREFIX} and {FEWEST} to {MOST} bytes in base64")),
        }
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        STANDARD.decode(self.0.strip_prefix(PREFIX)?).ok()
    }

    /// Shown once, to its creator.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// One signature per secret, with spaces between them.
pub fn signature<'a>(secrets: impl Iterator<Item = &'a Secret>, id: &str, timestamp: i64, body: &str) -> String {
    let one = |secret: &Secret| {
        let mut mac = Hmac::<Sha256>::new_from_slice(&secret.bytes()?).ok()?;
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body.as_bytes());
        Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
    };
    secrets.filter_map(one).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    #[test]
    fn a_signature_is_what_the_specification_says() {
        let secret = Secret::read("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = r#"{"test": 2432232314}"#;
        let signed = signature([&secret].into_iter(), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_has_enough_bytes_and_is_never_shown() {
        let made = Secret::new().unwrap();
        assert_eq!(Secret::read(made.reveal()), Ok(made.clone()));
        assert_eq!(format!("{made:?}"), "a secret");
        for bad in ["", "whsec_", "whsec_c2hvcnQ=", "whsec_not base64!", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
            assert!(Secret::read(bad).is_err(), "{bad}");
        }
    }
}
