//! Named secrets: an operator puts a value under a name, and calls, commands and subscriptions name it (`{"secret": "stripe"}`).
//!
//! A value is encrypted before it is stored and decrypted in the process that makes a call, at the moment of the call. It is in no
//! task, no history, no log and no answer; where the other side of a call repeats it, the repetition is masked before it is kept.

mod keyring;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use comeback_core::mask::{self, MASK};
use comeback_core::{Class, Failure, Invalid, Timestamp, Trigger};
use comeback_store::{SealedSecret, StoreError};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

pub use keyring::{Keyring, OpenError};

use crate::{Core, Json, ReportEnd};

/// Bytes that the value of a secret may have.
pub const MOST_BYTES: usize = 16 * 1024;
/// Bytes that stand before the value, as in `Bearer `.
const MOST_PREFIX: usize = 32;
const MOST_NAME: usize = 100;
/// A value that is shorter is not looked for in answers: it would be found everywhere.
const SHORTEST: usize = 8;

/// A secret as it is shown: without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretView {
    /// Its name.
    pub name: String,
    /// Time of its creation.
    pub created_at: Timestamp,
    /// Time of its last change.
    pub updated_at: Timestamp,
    /// Actor of its last change.
    pub updated_by: Option<String>,
    /// The key that it is encrypted with.
    pub key_id: String,
}

impl From<SealedSecret> for SecretView {
    fn from(it: SealedSecret) -> Self {
        SecretView {
            name: it.name,
            created_at: it.created_at,
            updated_at: it.updated_at,
            updated_by: it.updated_by,
            key_id: it.key_id,
        }
    }
}

/// The fault of a secret's name, if it has one.
pub fn name_fault(name: &str) -> Option<String> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let is_one = (1..=MOST_NAME).contains(&name.len()) && name.bytes().all(known);
    (!is_one).then(|| format!("must be letters, digits, `_`, `-` and `.`, {MOST_NAME} at most"))
}

/// A reference to a named secret, with what stands before its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretRef {
    /// Name of the secret.
    pub secret: String,
    /// Text before the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

impl SecretRef {
    /// Its fault, if it has one.
    pub fn fault(&self) -> Option<String> {
        if let Some(fault) = name_fault(&self.secret) {
            return Some(format!("the name of a secret {fault}"));
        }
        let plain = |it: char| it.is_ascii_alphanumeric() || matches!(it, ' ' | '=' | ':' | '_' | '-' | '/' | '.');
        let prefix = self.prefix.as_deref().unwrap_or_default();
        (prefix.len() > MOST_PREFIX || !prefix.chars().all(plain))
            .then(|| format!("a prefix is a word such as `Bearer `, {MOST_PREFIX} characters at most"))
    }
}

/// The value of a header or a variable: a text, or a named secret.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum SecretText {
    /// A plain text.
    Plain(String),
    /// A named secret.
    Named(SecretRef),
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretText::Plain(_) => f.write_str("a text"),
            SecretText::Named(named) => named.fmt(f),
        }
    }
}

impl SecretText {
    /// The name of the secret it stands for.
    pub fn name(&self) -> Option<&str> {
        match self {
            SecretText::Plain(_) => None,
            SecretText::Named(named) => Some(&named.secret),
        }
    }

    /// Its fault under a name, without looking anything up.
    pub fn fault(&self, name: &str) -> Option<String> {
        match self {
            SecretText::Named(named) => named.fault(),
            SecretText::Plain(text) if text == MASK && mask::is_secret_name(name) => Some(SENT_BACK.to_owned()),
            SecretText::Plain(_) => None,
        }
    }
}

/// Told where a mask is sent back in place of a secret.
pub const SENT_BACK: &str =
    "is the mask that views show in place of a secret; give the value itself, or a named secret";

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = SecretText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or {\"secret\": NAME}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<SecretText, E> {
                Ok(SecretText::Plain(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SecretText, A::Error> {
                SecretRef::deserialize(de::value::MapAccessDeserializer::new(map)).map(SecretText::Named)
            }
        }
        from.deserialize_any(Reader)
    }
}

/// Values of secrets while a call is made. Nothing prints them.
#[derive(Default)]
pub(crate) struct Values(BTreeMap<String, String>);

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Values {
    /// The text to send.
    pub fn text(&self, of: &SecretText) -> Option<String> {
        match of {
            SecretText::Plain(text) => Some(text.clone()),
            SecretText::Named(named) => {
                let value = self.0.get(&named.secret)?;
                Some(format!("{}{value}", named.prefix.as_deref().unwrap_or_default()))
            }
        }
    }

    /// One value by the name of its secret.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Values to mask: these, and those of plain headers and variables with the names of secrets.
    pub fn to_hide(&self, plain: &BTreeMap<String, SecretText>) -> Vec<String> {
        let mut hidden: BTreeSet<&str> = self.0.values().map(String::as_str).collect();
        for (name, text) in plain {
            if let (SecretText::Plain(text), true) = (text, mask::is_secret_name(name)) {
                hidden.insert(text);
                // `Bearer abc`: the other side may repeat only the second part.
                hidden.extend(text.split_once(' ').map(|(_, rest)| rest.trim()));
            }
        }
        let mut hidden: Vec<String> = hidden.into_iter().filter(|it| it.len() >= SHORTEST).map(str::to_owned).collect();
        hidden.sort_by_key(|it| std::cmp::Reverse(it.len()));
        hidden
    }
}

impl Core {
    /// The values of the secrets that are named, or the failure of the attempt that needs them. It can be tried again: somebody may
    /// put the secret in the meantime.
    pub(crate) async fn secret_values<'a>(
        &self,
        namespace: &str,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<Values, Box<Failure>> {
        let mut values = Values::default();
        for name in names.collect::<BTreeSet<_>>() {
            let stored = self.store.secret(namespace, name).await.map_err(|error| away(&error))?;
            let Some(stored) = stored else {
                let message =
                    format!("there is no secret `{name}` in this namespace; put it: comeback secret put {name}");
                return Err(unresolved(message));
            };
            match self.config.secret_keys.open(&stored) {
                Ok(value) => drop(values.0.insert(name.to_owned(), value)),
                Err(error) => return Err(unresolved(format!("the secret `{name}` cannot be read: {error}"))),
            }
        }
        Ok(values)
    }
}

fn unresolved(message: String) -> Box<Failure> {
    let (class, error_type) = (Some(Class::Retryable), Some("secret".into()));
    Box::new(Failure { class, error_type, ..Failure::new(Trigger::Error, message) })
}

fn away(error: &StoreError) -> Box<Failure> {
    let class = Some(Class::Retryable);
    Box::new(Failure { class, ..Failure::new(Trigger::Error, error.to_string()) })
}

/// Masks the secrets of a run in its result.
pub(crate) fn scrubbed(end: ReportEnd, hidden: &[String]) -> ReportEnd {
    if hidden.is_empty() {
        return end;
    }
    match end {
        ReportEnd::Failed(failure) => ReportEnd::Failed(scrubbed_failure(failure, hidden)),
        ReportEnd::Succeeded { result: Some(result) } if mentions(result.text(), hidden) => {
            let mut value: Value = serde_json::from_str(result.text()).unwrap_or_default();
            mask::scrub(&mut value, hidden);
            ReportEnd::Succeeded { result: Some(Json::from(value)) }
        }
        other => other,
    }
}

/// A JSON text may write a value with escapes, so one with any is looked at closely.
fn mentions(text: &str, hidden: &[String]) -> bool {
    text.contains('\\') || hidden.iter().any(|value| text.contains(value.as_str()))
}

pub(crate) fn scrubbed_failure(mut failure: Failure, hidden: &[String]) -> Failure {
    let clean = |text: &mut String| {
        if let Some(scrubbed) = mask::scrub_text(text, hidden) {
            *text = scrubbed;
        }
    };
    clean(&mut failure.message);
    failure.stack.as_mut().map(clean);
    failure.code.as_mut().map(clean);
    failure.error_type.as_mut().map(clean);
    if let Some(result) = &mut failure.result {
        mask::scrub(result, hidden);
    }
    failure
}

/// The fault of a secret's value, if it has one.
pub(crate) fn check_value(value: &str) -> Result<(), Invalid> {
    let fault = match value {
        "" => "may not be empty".to_owned(),
        _ if value.len() > MOST_BYTES => format!("may have {MOST_BYTES} bytes at most"),
        _ if value.contains('\0') => "may not contain a zero character".to_owned(),
        MASK => SENT_BACK.to_owned(),
        _ => return Ok(()),
    };
    Err(Invalid::one("value", fault))
}
