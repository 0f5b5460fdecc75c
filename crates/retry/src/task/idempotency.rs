//! Idempotency keys: a request that is sent again under its key is not done again.

use std::sync::Arc;

use crate::transition::Actor;

/// An idempotency key of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// Keys of different routes do not meet.
    pub scope: String,
    /// The key that the caller chose.
    pub key: String,
    /// Digest of the request: the same key with another request is a mistake.
    pub digest: [u8; 32],
}

/// The key of an act, in the namespace it was sent to. The store writes it in the transaction of the act's audit line, and refuses the
/// whole transaction where the key is used already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActKey {
    /// The namespace that the request was sent to.
    pub namespace: String,
    /// The key itself.
    pub key: Idempotency,
}

impl Actor {
    /// One write of an act that is several: under a key of its own, which follows from the key of the act. An act that broke off is
    /// then finished by its repetition, and no part of it is done twice.
    pub fn part(&self, name: &str) -> Actor {
        let once = self.once.as_ref().map(|once| {
            let key = Idempotency { scope: format!("{} {name}", once.key.scope), ..once.key.clone() };
            Arc::new(ActKey { key, ..(**once).clone() })
        });
        Actor { once, ..self.clone() }
    }

    /// The same act without its key, for lines that say more about it.
    pub fn without_key(&self) -> Actor {
        Actor { once: None, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_an_act_have_keys_of_their_own() {
        let key = Idempotency { scope: "POST /pause".into(), key: "k".into(), digest: [1; 32] };
        let once = Arc::new(ActKey { namespace: "red".into(), key });
        let act = Actor { once: Some(once.clone()), note: Some("n".into()), ..Actor::default() };
        let keys = ["reap", "prune", "reap"].map(|name| act.part(name).once.map(|once| once.key.clone()));
        assert_eq!(keys[0], keys[2]);
        assert_ne!(keys[0], keys[1]);
        assert_ne!(keys[0].as_ref(), Some(&once.key));
        assert_eq!(act.part("reap").note, act.note);
        assert_eq!((Actor::default().part("reap").once, act.without_key().once), (None, None));
    }
}
