//! Pauses and small facts.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::cases;
use crate::types::*;
use comeback_core::*;

cases! { "control";
    fn a_pause_is_remembered_with_who_and_why(w) {
        assert!(w.store.pauses().await.unwrap().is_empty());
        let pause = Pause { until: w.now() + Millis(60_000), note: Some("deploy".into()), by: Some("ana".into()), at: w.now() };
        w.store.set_pause(Loop::Reap, Some(pause.clone()), None, w.now()).await.unwrap();
        assert_eq!(w.store.pauses().await.unwrap(), [(Loop::Reap, pause)]);
    }

    fn a_second_pause_replaces_the_first(w) {
        for ms in [60_000, 5_000] {
            let pause = Pause { until: w.now() + Millis(ms), note: None, by: None, at: w.now() };
            w.store.set_pause(Loop::Prune, Some(pause), None, w.now()).await.unwrap();
        }
        assert_eq!(w.store.pauses().await.unwrap()[0].1.until, w.now() + Millis(5_000));
    }

    fn each_loop_is_paused_for_itself(w) {
        for name in Loop::ALL {
            let pause = Pause { until: Timestamp::MAX, note: None, by: None, at: w.now() };
            w.store.set_pause(*name, Some(pause), None, w.now()).await.unwrap();
        }
        assert_eq!(w.store.pauses().await.unwrap().len(), Loop::ALL.len());
        w.store.set_pause(Loop::Starts, None, None, w.now()).await.unwrap();
        assert_eq!(w.store.pauses().await.unwrap().len(), Loop::ALL.len() - 1);
        w.store.set_pause(Loop::Starts, None, None, w.now()).await.unwrap();
    }

    fn facts_are_kept_and_replaced(w) {
        assert_eq!(w.store.meta("k").await.unwrap(), None);
        assert_eq!(w.store.put_meta("k", "1", PutIf::Always, None).await.unwrap(), "1");
        assert_eq!(w.store.put_meta("k", "2", PutIf::Always, None).await.unwrap(), "2");
        assert_eq!(w.store.meta("k").await.unwrap().as_deref(), Some("2"));
    }

    /// Everybody adds a letter to what stands; nobody's is lost.
    fn a_fact_is_changed_only_by_who_knows_it(w) {
        w.store.put_meta("k", "", PutIf::Always, None).await.unwrap();
        let mut callers = tokio::task::JoinSet::new();
        for letter in "abcdefgh".chars() {
            let w = w.clone();
            callers.spawn(async move {
                loop {
                    let known = w.store.meta("k").await.unwrap().unwrap();
                    let wanted = format!("{known}{letter}");
                    if w.store.put_meta("k", &wanted, PutIf::Is(&known), None).await.unwrap() == wanted {
                        return;
                    }
                }
            });
        }
        callers.join_all().await;
        let mut letters: Vec<char> = w.store.meta("k").await.unwrap().unwrap().chars().collect();
        letters.sort_unstable();
        assert_eq!(letters.into_iter().collect::<String>(), "abcdefgh");
    }

    fn a_first_fact_stands_for_everybody(w) {
        let mut callers = tokio::task::JoinSet::new();
        for n in 0..8 {
            let w = w.clone();
            callers.spawn(async move { w.store.put_meta("secret", &n.to_string(), PutIf::Absent, None).await.unwrap() });
        }
        let answers: std::collections::HashSet<String> = callers.join_all().await.into_iter().collect();
        assert_eq!(answers.len(), 1);
        assert_eq!(w.store.meta("secret").await.unwrap(), answers.into_iter().next());
    }
}
