//! The tasks of large executions, by their shape.

use comeback_core::{OnUnmet, When};
use comeback_engine::{Need, TaskSpec};

fn named(name: String, needs: Vec<String>) -> TaskSpec {
    let need = |task: String| Need { task, when: When::Success, on_unmet: OnUnmet::Skip };
    TaskSpec { key: Some(name), needs: needs.into_iter().map(need).collect(), ..TaskSpec::new("step") }
}

pub fn chain(count: usize) -> Vec<TaskSpec> {
    let needs = |n: usize| n.checked_sub(1).map(|n| format!("s{n}"));
    (0..count).map(|n| named(format!("s{n}"), needs(n).into_iter().collect())).collect()
}

/// One, all the others, and one that needs them all.
pub fn fan(count: usize) -> Vec<TaskSpec> {
    let middle: Vec<String> = (2..count).map(|n| format!("s{n}")).collect();
    let mut tasks = vec![named("first".into(), Vec::new()), named("last".into(), middle.clone())];
    tasks.extend(middle.into_iter().map(|name| named(name, vec!["first".into()])));
    tasks
}

/// Rows of fifty, each task with two of the row before it.
pub fn rows(count: usize) -> Vec<TaskSpec> {
    let above = |n: usize| n.checked_sub(50).map(|n| vec![format!("s{n}"), format!("s{}", n - n % 50)]);
    let needs = |n: usize| {
        let mut needs = above(n).unwrap_or_default();
        needs.dedup();
        needs
    };
    (0..count).map(|n| named(format!("s{n}"), needs(n))).collect()
}
