//! Named secrets: what is kept is what was sealed, one per name, as many as a quota allows.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use comeback_core::Quota;

use super::{World, cases};
use crate::StoreError;
use crate::*;

fn sealed(w: &World, namespace: &str, name: &str, byte: u8) -> SealedSecret {
    SealedSecret {
        namespace: namespace.into(),
        name: name.into(),
        version: 0,
        key_id: "k1".into(),
        sealed: vec![byte, 0, 255],
        created_at: w.now(),
        updated_at: w.now(),
        updated_by: Some("ana".into()),
    }
}

async fn put(w: &World, secret: &SealedSecret) -> (SealedSecret, bool) {
    w.store.put_secret(secret, 10, None, w.now()).await.unwrap()
}

fn names(found: &[SealedSecret]) -> Vec<String> {
    found.iter().map(|it| format!("{}/{}", it.namespace, it.name)).collect()
}

cases! { "secrets";
    fn what_is_sealed_is_found_and_replaced(w) {
        assert_eq!(w.store.secret("red", "stripe").await.unwrap(), None);
        let (first, new) = put(&w, &sealed(&w, "red", "stripe", 1)).await;
        assert!(new);
        assert_eq!(w.store.secret("red", "stripe").await.unwrap(), Some(first.clone()));
        assert_eq!((first.version, first.sealed.as_slice()), (1, &[1, 0, 255][..]));
        w.pass(5);
        let (second, new) = put(&w, &SealedSecret { updated_by: None, ..sealed(&w, "red", "stripe", 2) }).await;
        assert!(!new);
        assert_eq!((second.version, second.created_at, second.updated_at), (2, first.created_at, w.now()));
        assert_eq!((second.sealed[0], &second.updated_by), (2, &None));
        assert_eq!(w.store.secret("red", "stripe").await.unwrap(), Some(second));
        assert_eq!(w.store.secret("blue", "stripe").await.unwrap(), None, "a namespace has its own");
    }

    fn pages_are_by_name_and_namespaces_apart(w) {
        for (namespace, name) in [("red", "b"), ("red", "a"), ("blue", "c"), ("red", "Z")] {
            put(&w, &sealed(&w, namespace, name, 0)).await;
        }
        assert_eq!(names(&w.store.secrets("red", "", 2).await.unwrap()), ["red/Z", "red/a"]);
        assert_eq!(names(&w.store.secrets("red", "a", 2).await.unwrap()), ["red/b"]);
        assert_eq!(names(&w.store.all_secrets(("", ""), 3).await.unwrap()), ["blue/c", "red/Z", "red/a"]);
        assert_eq!(names(&w.store.all_secrets(("red", "Z"), 3).await.unwrap()), ["red/a", "red/b"]);
    }

    fn a_namespace_has_as_many_as_its_quota_allows(w) {
        for name in ["a", "b"] {
            w.store.put_secret(&sealed(&w, "red", name, 0), 2, None, w.now()).await.unwrap();
        }
        let refused = w.store.put_secret(&sealed(&w, "red", "c", 0), 2, None, w.now()).await.unwrap_err();
        assert!(matches!(&refused, StoreError::QuotaExceeded(it) if it.quota == Quota::Secrets && it.most == 2), "{refused}");
        w.store.put_secret(&sealed(&w, "red", "a", 1), 2, None, w.now()).await.expect("one that is there may be replaced");
        w.store.put_secret(&sealed(&w, "blue", "c", 1), 2, None, w.now()).await.expect("others have their own");
    }

    fn a_seal_is_renewed_only_where_nobody_was_quicker(w) {
        let (first, _) = put(&w, &sealed(&w, "red", "a", 1)).await;
        w.pass(5);
        let renewed = SealedSecret { key_id: "k2".into(), sealed: vec![9], ..first.clone() };
        assert!(w.store.reseal_secret(&renewed).await.unwrap());
        assert!(!w.store.reseal_secret(&renewed).await.unwrap(), "that version is gone");
        let found = w.store.secret("red", "a").await.unwrap().unwrap();
        assert_eq!((found.key_id.as_str(), found.updated_at, found.version), ("k2", first.updated_at, 2));
    }

    fn what_is_deleted_is_gone(w) {
        put(&w, &sealed(&w, "red", "a", 1)).await;
        assert!(!w.store.delete_secret("blue", "a", None).await.unwrap());
        assert!(w.store.delete_secret("red", "a", None).await.unwrap());
        assert!(!w.store.delete_secret("red", "a", None).await.unwrap());
        assert_eq!(w.store.secret("red", "a").await.unwrap(), None);
    }
}
