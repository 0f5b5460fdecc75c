//! Rows that instances share: keys, policies of kinds, drained workers, workers, instances.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use comeback_core::transition::Actor;
use comeback_core::{Audit, AuditAction, Millis, Quota, Timestamp};
use serde_json::json;
use uuid::Uuid;

use super::{World, cases};
use crate::{ApiKey, AuditQuery, Drained, DrainedWorker, InstanceRow, KeyPut, KindPolicy, StoreError, WorkerSeen};

fn key(w: &World, id: &str, namespace: &str, name: Option<&str>) -> ApiKey {
    ApiKey {
        id: id.into(),
        namespace: namespace.into(),
        name: name.map(str::to_owned),
        role: "worker".into(),
        hash: format!("hash of {id}"),
        terms: json!({"queues": ["a*"]}).to_string(),
        created_at: w.now(),
        expires_at: None,
        revoked_at: None,
        replaced_by: None,
    }
}

fn policy(namespace: &str, kind: &str, body: &str) -> KindPolicy {
    KindPolicy { namespace: namespace.into(), kind: kind.into(), body: body.into(), dialect: "native".into() }
}

fn entry(w: &World, number: u128, did: AuditAction, subject: &str) -> Audit {
    let act = Actor { by: Some("ana".into()), key_id: Some("k1".into()), ..Actor::default() };
    Audit::new(Uuid::from_u128(number), w.now(), did, subject, &act).within("red")
}

async fn create(w: &World, key: &ApiKey, most: u64) -> Result<KeyPut, StoreError> {
    w.store.create_key(key, most, None, w.now()).await
}

async fn acts(w: &World) -> Vec<Audit> {
    w.store.audit(&AuditQuery { limit: 100, ..AuditQuery::default() }).await.unwrap()
}

fn seen(name: &str, at: Timestamp, leased: u64, asks: Option<&str>) -> WorkerSeen {
    WorkerSeen { namespace: "red".into(), name: name.into(), seen_at: at, leased, asks: asks.map(str::to_owned) }
}

cases! { "shared";
    fn a_key_is_read_back_as_it_was_stored(w) {
        let full = ApiKey { expires_at: Some(w.now() + Millis(5)), ..key(&w, "k1", "red", Some("ci")) };
        let before = w.store.change_numbers().await.unwrap().keys;
        assert_eq!(w.store.create_key(&full, 10, Some(&entry(&w, 1, AuditAction::KeyCreate, "k1")), w.now()).await.unwrap(), KeyPut::Done);
        assert_eq!(w.store.api_keys(before.last).await.unwrap(), std::slice::from_ref(&full));
        let after = w.store.change_numbers().await.unwrap().keys;
        assert!(after.last > before.last && after.removed == before.removed, "{before:?} {after:?}");
        assert_eq!(w.store.api_keys(after.last).await.unwrap(), [], "nothing has changed since");
        assert_eq!(w.store.list_keys(Some("red")).await.unwrap(), [full]);
        assert_eq!(w.store.list_keys(Some("blue")).await.unwrap(), []);
        let acts = acts(&w).await;
        assert_eq!((acts.len(), acts[0].key_id.as_deref()), (1, Some("k1")));
    }

    fn a_key_is_never_stored_in_place_of_another(w) {
        let first = key(&w, "k1", "*", None);
        create(&w, &first, 10).await.unwrap();
        let other = ApiKey { hash: "another".into(), ..key(&w, "k1", "red", None) };
        let refused = w.store.create_key(&other, 10, Some(&entry(&w, 1, AuditAction::KeyCreate, "k1")), w.now()).await.unwrap();
        assert_eq!(refused, KeyPut::Exists);
        assert_eq!(w.store.list_keys(None).await.unwrap(), [first]);
        assert_eq!(acts(&w).await, [], "what was not done is not written down");
    }

    fn active_keys_of_a_namespace_have_names_of_their_own(w) {
        for (id, namespace, name, put) in [
            ("h1", "*", Some("root"), KeyPut::Done),
            ("h2", "*", Some("root"), KeyPut::NameTaken),
            ("r1", "red", Some("ci"), KeyPut::Done),
            ("r2", "red", Some("ci"), KeyPut::NameTaken),
            ("r3", "red", Some("root"), KeyPut::NameTaken),
            ("b1", "blue", Some("ci"), KeyPut::Done),
            ("h3", "*", Some("ci"), KeyPut::Done),
            ("r4", "red", None, KeyPut::Done),
            ("r5", "red", None, KeyPut::Done),
        ] {
            assert_eq!(create(&w, &key(&w, id, namespace, name), 10).await.unwrap(), put, "{id} {namespace} {name:?}");
        }
        w.store.revoke_key("b1", None, w.now()).await.unwrap();
        w.store.revoke_key("h1", None, w.now()).await.unwrap();
        assert_eq!(create(&w, &key(&w, "h4", "*", Some("root")), 10).await.unwrap(), KeyPut::Done, "nobody active has it");
        w.store.revoke_key("h4", None, w.now()).await.unwrap();
        assert_eq!(create(&w, &key(&w, "r6", "red", Some("root")), 10).await.unwrap(), KeyPut::NameTaken, "it stays reserved");
    }

    fn keys_are_limited_by_namespace_and_those_that_ended_make_room(w) {
        for n in 0..3 {
            w.pass(1);
            create(&w, &key(&w, &format!("r{n}"), "red", None), 3).await.unwrap();
        }
        let refused = create(&w, &key(&w, "r3", "red", None), 3).await.unwrap_err();
        let StoreError::QuotaExceeded(exceeded) = refused else { panic!("{refused}") };
        assert_eq!((exceeded.quota, exceeded.most), (Quota::Keys, 3));
        create(&w, &key(&w, "b1", "blue", None), 3).await.unwrap();
        assert!(w.store.revoke_key("r0", None, w.now()).await.unwrap());
        assert!(!w.store.revoke_key("r0", None, w.now()).await.unwrap(), "once");
        let before = w.store.change_numbers().await.unwrap().keys;
        create(&w, &key(&w, "r3", "red", None), 3).await.unwrap();
        let ids: Vec<String> = w.store.list_keys(Some("red")).await.unwrap().into_iter().map(|key| key.id).collect();
        assert_eq!(ids, ["r1", "r2", "r3"]);
        assert!(w.store.change_numbers().await.unwrap().keys.removed > before.last, "who follows reads all again");
    }

    fn a_rotated_key_ends_when_its_overlap_does(w) {
        create(&w, &key(&w, "k1", "red", Some("ci")), 10).await.unwrap();
        let new = key(&w, "k2", "red", Some("ci"));
        let ends = w.now() + Millis(1_000);
        let audit = entry(&w, 1, AuditAction::KeyRotate, "k1");
        assert_eq!(w.store.rotate_key("k1", ends, &new, 10, Some(&audit), w.now()).await.unwrap(), KeyPut::Done);
        let keys = w.store.list_keys(Some("red")).await.unwrap();
        let old = keys.iter().find(|key| key.id == "k1").unwrap();
        assert_eq!((old.expires_at, old.replaced_by.as_deref(), old.revoked_at), (Some(ends), Some("k2"), None));
        assert!(keys.contains(&new));
        let again = w.store.rotate_key("k1", ends, &key(&w, "k3", "red", Some("ci")), 10, None, w.now()).await.unwrap();
        assert_eq!(again, KeyPut::NotActive, "it was rotated already");
        assert_eq!(w.store.rotate_key("k2", ends, &new, 10, None, w.now()).await.unwrap(), KeyPut::Exists);
        assert_eq!(w.store.rotate_key("none", ends, &key(&w, "k4", "red", None), 10, None, w.now()).await.unwrap(), KeyPut::NotActive);
        let taken = create(&w, &key(&w, "k5", "red", Some("ci")), 10).await.unwrap();
        assert_eq!(taken, KeyPut::NameTaken, "the new one has the name");
        let soon = w.now() + Millis(10);
        create(&w, &ApiKey { expires_at: Some(soon), ..key(&w, "k6", "red", None) }, 10).await.unwrap();
        w.store.rotate_key("k6", ends, &key(&w, "k7", "red", None), 10, None, w.now()).await.unwrap();
        let keys = w.store.list_keys(Some("red")).await.unwrap();
        assert_eq!(keys.iter().find(|key| key.id == "k6").unwrap().expires_at, Some(soon), "never later than before");
        assert_eq!(acts(&w).await.len(), 1);
    }

    fn the_policy_of_a_kind_is_one_row_and_limited_by_namespace(w) {
        let start = w.store.change_numbers().await.unwrap().policies;
        for (kind, body) in [("a", "1"), ("b", "2"), ("a", "3")] {
            let audit = entry(&w, w.now().0 as u128 + body.parse::<u128>().unwrap(), AuditAction::PolicyBind, kind);
            w.store.put_kind_policy(&policy("red", kind, body), 2, Some(&audit)).await.unwrap();
        }
        let refused = w.store.put_kind_policy(&policy("red", "c", "4"), 2, None).await.unwrap_err();
        assert!(matches!(refused, StoreError::QuotaExceeded(it) if it.quota == Quota::NamedPolicies && it.most == 2));
        w.store.put_kind_policy(&policy("blue", "c", "4"), 2, None).await.unwrap();
        let names = w.store.kind_policy_names(start.last).await.unwrap();
        let mut names: Vec<(String, String)> = names.into_iter().map(|it| (it.namespace, it.kind)).collect();
        names.sort();
        assert_eq!(names, [("blue", "c"), ("red", "a"), ("red", "b")].map(|(a, b)| (a.to_owned(), b.to_owned())));
        let asked = ["a".to_owned(), "c".to_owned()];
        assert_eq!(w.store.kind_policies("red", &asked).await.unwrap(), [policy("red", "a", "3")]);
        assert_eq!(acts(&w).await[0].before, Some(json!({"policy": 1, "dialect": "native"})));
        let before = w.store.change_numbers().await.unwrap().policies;
        assert!(w.store.delete_kind_policy("red", "a", None).await.unwrap());
        assert!(!w.store.delete_kind_policy("red", "a", None).await.unwrap());
        let after = w.store.change_numbers().await.unwrap().policies;
        assert_eq!((after.last, after.removed), (before.last + 1, before.last + 1));
        assert_eq!(w.store.kind_policies("red", &asked).await.unwrap(), []);
    }

    fn a_worker_is_drained_once_and_old_names_make_room(w) {
        let worker = |name: &str, at: i64| DrainedWorker {
            namespace: "red".into(), name: name.into(), at: Timestamp(at), by: None, note: Some("why".into()),
        };
        let drain = async |name: &str, at: i64, old: i64| {
            let audit = entry(&w, at as u128, AuditAction::WorkerDrain, name);
            w.store.drain_worker(&worker(name, at), 2, Timestamp(old), Some(&audit)).await.unwrap()
        };
        assert_eq!(drain("a", 1, 0).await, Drained::Done);
        assert_eq!(drain("a", 2, 0).await, Drained::Already(worker("a", 1)));
        assert_eq!(drain("b", 3, 0).await, Drained::Done);
        assert_eq!(drain("c", 4, 0).await, Drained::TooMany);
        w.store.put_workers("one", &[seen("a", w.now(), 0, None)]).await.unwrap();
        assert_eq!(drain("c", 5, 3).await, Drained::Done, "b is old, and nobody has seen it");
        let mut all: Vec<String> = w.store.drained_workers().await.unwrap().into_iter().map(|it| it.name).collect();
        all.sort();
        assert_eq!(all, ["a", "c"]);
        assert!(w.store.undrain_worker("red", "a", None).await.unwrap());
        assert!(!w.store.undrain_worker("red", "a", None).await.unwrap());
        assert_eq!(acts(&w).await.len(), 3);
    }

    fn workers_are_stored_in_batches_and_add_up(w) {
        let at = w.now();
        w.store.put_workers("one", &[seen("b", at, 2, Some("{\"kinds\":[]}")), seen("a", at, 0, None)]).await.unwrap();
        w.store.put_workers("two", &[seen("b", at + Millis(5), 3, None)]).await.unwrap();
        w.store.put_workers("two", &[]).await.unwrap();
        let rows = w.store.workers("red", Timestamp(at.0 - 1), 10).await.unwrap();
        let told: Vec<_> = rows.iter().map(|it| (it.name.as_str(), it.instance.as_str(), it.leased, it.asks.as_str())).collect();
        assert_eq!(told, [("b", "two", 5, "{\"kinds\":[]}"), ("a", "one", 0, "{}")], "the latest first");
        assert_eq!(w.store.workers("blue", Timestamp(0), 10).await.unwrap(), []);
        assert_eq!(w.store.worker_counts(Timestamp(at.0 - 1)).await.unwrap(), [("red".to_owned(), 2)]);
        assert_eq!(w.store.worker_counts(at).await.unwrap(), [("red".to_owned(), 1)]);
        assert!(w.store.has_worker("red", "a", Timestamp(at.0 - 1)).await.unwrap());
        assert!(!w.store.has_worker("red", "a", at).await.unwrap());
        assert_eq!(w.store.forget_workers(at + Millis(1)).await.unwrap(), 1);
        assert_eq!(w.store.workers("red", Timestamp(0), 10).await.unwrap().len(), 1);
    }

    fn an_instance_is_one_row_until_it_is_silent(w) {
        let row = |id: &str, at: Timestamp| InstanceRow { id: id.into(), version: "1".into(), started_at: at, seen_at: at };
        let at = w.now();
        w.store.put_instance(&row("b", at), Timestamp(0)).await.unwrap();
        w.store.put_instance(&row("a", at + Millis(1)), Timestamp(0)).await.unwrap();
        assert_eq!(w.store.instances().await.unwrap(), [row("a", at + Millis(1)), row("b", at)]);
        w.store.put_instance(&row("a", at + Millis(9)), at + Millis(1)).await.unwrap();
        assert_eq!(w.store.instances().await.unwrap(), [row("a", at + Millis(9))]);
    }
}
