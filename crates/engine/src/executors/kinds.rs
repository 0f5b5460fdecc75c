//! Kinds that this process knows how to run: a task of such a kind needs no executor of its own. It is leased like any other
//! task of a worker, and the command of its kind runs it.
//!
//! A category is a queue. Where a task of such a kind says nothing else, the label `category` chooses its queue, and a kind that
//! is limited to some categories leases from their queues only. A retry waits in the queue of its task, so the limit holds for new
//! and for retried work alike; and one lease looks at all the queues together, so the oldest submission goes first over all
//! categories.

use std::collections::BTreeMap;
use std::sync::Arc;

use comeback_core::{Invalid, Millis, Policy};

use super::command::Process;
use super::discover::Discover;
use crate::spec::ExecutorSpec;
use crate::{Limits, TaskSpec};

/// The label that says which category a task is of.
pub const CATEGORY: &str = "category";
/// The queue of tasks without a category.
pub const NO_CATEGORY: &str = "default";

/// A kind of task that this process runs as a command.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Namespace of the kind.
    pub namespace: String,
    /// Name of the kind.
    pub name: String,
    /// The command.
    pub process: Process,
    /// For tasks that say nothing about retries.
    pub retry: Option<Arc<Policy>>,
    /// How long one run may take, where the task does not say.
    pub timeout: Option<Millis>,
    /// Runs side by side.
    pub concurrency: usize,
    /// All of them where nothing is said.
    pub categories: Option<Vec<String>>,
    /// The command that discovers tasks.
    pub discover: Option<Discover>,
}

impl Kind {
    /// A kind with default settings.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, process: Process) -> Kind {
        Kind {
            namespace: namespace.into(),
            name: name.into(),
            process,
            retry: None,
            timeout: None,
            concurrency: 1,
            categories: None,
            discover: None,
        }
    }

    /// The queues of its categories, as many as one request may name; none means all of them.
    pub(super) fn queues(&self) -> Vec<Vec<String>> {
        match &self.categories {
            None => vec![Vec::new()],
            Some(categories) => categories.chunks(100).map(<[String]>::to_vec).collect(),
        }
    }

    /// Where a task of this kind waits.
    pub(crate) fn queue(task: &TaskSpec) -> &str {
        task.labels.get(CATEGORY).map_or(NO_CATEGORY, String::as_str)
    }

    pub(crate) fn check(task: &TaskSpec, at: &str, limits: &Limits, faults: &mut Invalid) {
        if let Some(category) = task.labels.get(CATEGORY) {
            limits.check_name(&format!("{at}labels.{CATEGORY}"), category, faults);
        }
        if task.queue.as_deref().is_some_and(|queue| queue != Kind::queue(task)) {
            let why = format!("the label `{CATEGORY}` chooses the queue of this kind");
            faults.push(format!("{at}queue"), why);
        }
    }
}

/// The kinds there are, by their names.
#[derive(Clone, Debug, Default)]
pub struct Kinds(Arc<BTreeMap<(String, String), Arc<Kind>>>);

impl Kinds {
    /// A set of kinds.
    pub fn of(kinds: impl IntoIterator<Item = Kind>) -> Kinds {
        let named = |kind: Kind| ((kind.namespace.clone(), kind.name.clone()), Arc::new(kind));
        Kinds(Arc::new(kinds.into_iter().map(named).collect()))
    }

    /// The kind of this name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<Kind>> {
        // Almost everywhere there are none, and this is asked for every task.
        if self.0.is_empty() { None } else { self.0.get(&(namespace.to_owned(), name.to_owned())) }
    }

    /// By what tasks of a kind are retried that say nothing about it.
    pub fn retry(&self, namespace: &str, name: &str) -> Option<&Arc<Policy>> {
        self.get(namespace, name)?.retry.as_ref()
    }

    /// All kinds.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.0.values()
    }

    /// The kind that runs a task, where it is left to a kind.
    pub(crate) fn that_runs(&self, namespace: &str, task: &TaskSpec) -> Option<&Arc<Kind>> {
        self.get(namespace, &task.kind).filter(|_| task.executor == ExecutorSpec::Worker)
    }
}
