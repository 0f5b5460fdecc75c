//! Texts under names, with versions.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::cases;
use crate::*;

const SHELF: Collection<'static> = Collection { namespace: "default", shelf: "workflows" };

cases! { "documents";
    fn a_new_version_stands_beside_the_old_one(w) {
        assert_eq!(w.store.document(SHELF, "a", None).await.unwrap(), None);
        assert!(w.store.put_document(SHELF, "a", 0, "one", None, w.now()).await.unwrap());
        w.pass(5);
        assert!(w.store.put_document(SHELF, "a", 1, "two", None, w.now()).await.unwrap());
        let newest = w.store.document(SHELF, "a", None).await.unwrap().unwrap();
        assert_eq!((newest.version, newest.body.as_str(), newest.at), (2, "two", w.now()));
        let first = w.store.document(SHELF, "a", Some(1)).await.unwrap().unwrap();
        assert_eq!((first.version, first.body.as_str(), first.namespace.as_str()), (1, "one", "default"));
        assert_eq!(w.store.document(SHELF, "a", Some(3)).await.unwrap(), None);
        let all: Vec<u32> = w.store.versions(SHELF, "a", 10).await.unwrap().iter().map(|it| it.version).collect();
        assert_eq!(all, [2, 1]);
    }

    fn who_knows_an_older_version_writes_nothing(w) {
        assert!(w.store.put_document(SHELF, "a", 0, "one", None, w.now()).await.unwrap());
        assert!(!w.store.put_document(SHELF, "a", 0, "again", None, w.now()).await.unwrap());
        assert!(!w.store.put_document(SHELF, "a", 2, "early", None, w.now()).await.unwrap());
        assert_eq!(w.store.document(SHELF, "a", None).await.unwrap().unwrap().body, "one");
    }

    fn of_two_who_write_at_once_one_is_told_no(w) {
        let put = |body: &'static str| w.store.put_document(SHELF, "a", 0, body, None, w.now());
        let (one, two) = tokio::join!(put("one"), put("two"));
        assert!(one.unwrap() != two.unwrap());
        assert_eq!(w.store.versions(SHELF, "a", 10).await.unwrap().len(), 1);
    }

    /// Model A16.
    fn shelves_and_namespaces_do_not_meet(w) {
        let other = Collection { namespace: "other", ..SHELF };
        let beside = Collection { shelf: "rules", ..SHELF };
        w.store.put_document(SHELF, "a", 0, "one", None, w.now()).await.unwrap();
        assert_eq!(w.store.document(other, "a", None).await.unwrap(), None);
        assert_eq!(w.store.document(beside, "a", None).await.unwrap(), None);
        assert!(w.store.put_document(other, "a", 0, "theirs", None, w.now()).await.unwrap());
        assert!(w.store.delete_document(other, "a").await.unwrap());
        assert!(!w.store.delete_document(other, "a").await.unwrap());
        assert_eq!(w.store.document(SHELF, "a", None).await.unwrap().unwrap().body, "one");
    }

    fn names_are_listed_in_their_order_with_their_newest_version(w) {
        for name in ["b", "a/c", "a", "Z"] {
            w.store.put_document(SHELF, name, 0, "one", None, w.now()).await.unwrap();
        }
        w.store.put_document(SHELF, "a", 1, "two", None, w.now()).await.unwrap();
        let page = |after: &'static str, limit| w.store.documents(SHELF, after, limit);
        let names = |found: Vec<Document>| found.into_iter().map(|it| (it.name, it.version)).collect::<Vec<_>>();
        let expected: Vec<(String, u32)> =
            [("Z", 1), ("a", 2), ("a/c", 1), ("b", 1)].map(|(name, version)| (name.into(), version)).into();
        assert_eq!(names(page("", 10).await.unwrap()), expected);
        assert_eq!(names(page("", 2).await.unwrap()), expected[..2]);
        assert_eq!(names(page("a", 10).await.unwrap()), expected[2..]);
    }
}
