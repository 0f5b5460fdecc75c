//! Rows turned into columns: PostgreSQL takes a thousand rows as one array per column and one statement.

use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::apply::Verdict;
use crate::NewTask;
use crate::row::OpenRow;

/// Parameters, in order.
pub type Params<'a> = Vec<&'a (dyn ToSql + Sync)>;

/// Declares the columns of a sort of row: name, PostgreSQL type, and where the value comes from.
macro_rules! columns {
    ($(#[$doc:meta])* $name:ident<$life:lifetime> from $row:ty as $it:ident {
        $($field:ident: $kind:ty, $sql:literal = $value:expr;)+
    }) => {
        $(#[$doc])*
        #[derive(Default)]
        pub struct $name<$life> {
            $($field: Vec<$kind>,)+
            _row: std::marker::PhantomData<&$life ()>,
        }

        impl<$life> $name<$life> {
            pub fn push(&mut self, $it: &$life $row) {
                $(self.$field.push($value);)+
            }

            pub fn params(&self) -> Params<'_> {
                vec![$(&self.$field as &(dyn ToSql + Sync)),+]
            }

            /// `$1::uuid[], $2::int4[], …`, counted from `first`.
            pub fn arrays(first: usize) -> String {
                let kinds = [$($sql),+];
                let marks = kinds.iter().zip(first..).map(|(kind, n)| format!("${n}::{kind}[]"));
                marks.collect::<Vec<_>>().join(", ")
            }

            /// The names, each with a prefix so that several sorts can stand side by side.
            pub fn names(prefix: &str) -> String {
                let names = [$(stringify!($field)),+];
                names.iter().map(|name| format!("{prefix}{name}")).collect::<Vec<_>>().join(", ")
            }

            pub const WIDTH: usize = [$($sql),+].len();
        }
    };
}

columns! {
    /// A run that succeeded: everything else is in its open row.
    SuccessColumns<'a> from Verdict<'a> as it {
        x_index: i32, "int4" = it.index;
        x_expected: i32, "int4" = it.expected;
        x_namespace: i32, "int4" = it.namespace;
        x_first: i32, "int4" = it.first;
        x_last: i32, "int4" = it.last;
        id: Uuid, "uuid" = it.open.id;
        seq: i32, "int4" = it.history.seq;
        events: &'a [u8], "bytea" = it.events.as_slice();
        at: i64, "int8" = it.history.at;
        result: Option<&'a str>, "text" = it.history.result.as_deref();
    }
}

columns! {
    /// A run that failed and is tried again.
    RetryColumns<'a> from Verdict<'a> as it {
        x_index: i32, "int4" = it.index;
        x_expected: i32, "int4" = it.expected;
        x_namespace: i32, "int4" = it.namespace;
        x_first: i32, "int4" = it.first;
        x_last: i32, "int4" = it.last;
        id: Uuid, "uuid" = it.open.id;
        seq: i32, "int4" = it.history.seq;
        events: &'a [u8], "bytea" = it.events.as_slice();
        at: i64, "int8" = it.history.at;
        ready_at: Option<i64>, "int8" = it.history.ready_at;
        started_at: Option<i64>, "int8" = it.history.started_at;
        cycle: i32, "int4" = it.history.cycle;
        run: i32, "int4" = it.history.run;
        lease_no: i32, "int4" = it.history.lease_no;
        outcome: Option<i16>, "int2" = it.history.outcome;
        worker: Option<&'a str>, "text" = it.history.worker.as_deref();
        error: Option<&'a str>, "text" = it.history.error.as_deref();
        decision: Option<&'a str>, "text" = it.history.decision.as_deref();
        attempt: i32, "int4" = it.open.attempt;
        lost: i32, "int4" = it.open.lost;
        throttled: i32, "int4" = it.open.throttled;
        snoozed: i32, "int4" = it.open.snoozed;
        rule_counts: Option<&'a [u8]>, "bytea" = it.open.rule_counts.as_deref();
        due: Option<i64>, "int8" = it.open.due;
        next_retry_at: Option<i64>, "int8" = it.open.next_retry_at;
        held_until: Option<i64>, "int8" = it.open.held_until;
        held_by: Option<&'a str>, "text" = it.open.held_by.as_deref();
        first_failed_at: Option<i64>, "int8" = it.open.first_failed_at;
        class: Option<i16>, "int2" = it.open.class;
        fingerprint: Option<i64>, "int8" = it.open.fingerprint;
    }
}

/// A body with the numbers it refers to.
pub struct BodyRow<'a> {
    pub new: &'a NewTask,
    pub namespace: i32,
    pub labels: Option<String>,
    pub rules: Option<String>,
    pub open: OpenRow,
}

columns! {
    /// Everything that a task can have when it is created.
    CreateColumns<'a> from BodyRow<'a> as row {
        id: Uuid, "uuid" = row.open.id;
        namespace: i32, "int4" = row.namespace;
        lane: i32, "int4" = row.open.lane;
        policy: Option<i32>, "int4" = row.open.policy;
        prio: i16, "int2" = row.open.prio;
        submitted_at: i64, "int8" = row.open.submitted_at;
        payload: Option<&'a str>, "text" = row.new.body.payload.as_deref();
        labels: Option<&'a str>, "text" = row.labels.as_deref();
        execution_id: Option<Uuid>, "uuid" = row.open.execution_id;
        state: i16, "int2" = row.open.state;
        seq: i32, "int4" = row.open.seq;
        due: Option<i64>, "int8" = row.open.due;
        start_at: Option<i64>, "int8" = row.open.start_at;
        timeout_ms: Option<i64>, "int8" = row.open.timeout_ms;
        attempt_deadline_ms: Option<i64>, "int8" = row.open.attempt_deadline_ms;
        expires_at: Option<i64>, "int8" = row.open.expires_at;
        hard_deadline: i16, "int2" = row.open.hard_deadline;
        needs_left: i32, "int4" = row.open.needs_left;
        children_left: i32, "int4" = row.open.children_left;
        dead_end_barrier: i16, "int2" = row.open.dead_end_barrier;
        gated: i16, "int2" = row.open.gated;
        hooked: i16, "int2" = row.open.hooked;
        expected: Option<i32>, "int4" = row.open.expected;
        step: Option<&'a str>, "text" = row.new.body.step.as_deref();
        key: Option<&'a str>, "text" = row.new.body.key.as_deref();
        name: Option<&'a str>, "text" = row.new.body.name.as_deref();
        executor: Option<&'a str>, "text" = row.new.body.executor.as_deref();
        hooks: Option<&'a str>, "text" = row.new.body.hooks.as_deref();
        account: Option<&'a str>, "text" = row.new.body.account.as_deref();
        cost: Option<i32>, "int4" = row.new.body.cost.map(u32::cast_signed);
        dedupe_key: Option<&'a str>, "text" = row.new.body.dedupe_key.as_deref();
        external_id: Option<&'a str>, "text" = row.new.body.external_id.as_deref();
        traceparent: Option<&'a str>, "text" = row.new.body.traceparent.as_deref();
        rules: Option<&'a str>, "text" = row.rules.as_deref();
    }
}

columns! {
    /// A lone task that is ready at once and has nothing but a payload, labels and a policy.
    PlainColumns<'a> from BodyRow<'a> as row {
        id: Uuid, "uuid" = row.open.id;
        namespace: i32, "int4" = row.namespace;
        lane: i32, "int4" = row.open.lane;
        policy: Option<i32>, "int4" = row.open.policy;
        prio: i16, "int2" = row.open.prio;
        submitted_at: i64, "int8" = row.open.submitted_at;
        payload: Option<&'a str>, "text" = row.new.body.payload.as_deref();
        labels: Option<&'a str>, "text" = row.labels.as_deref();
    }
}

impl BodyRow<'_> {
    /// Whether the narrow statement tells the whole of this task.
    pub fn is_plain(&self) -> bool {
        let (open, body) = (&self.open, &self.new.body);
        let texts = [
            &body.key,
            &body.name,
            &body.executor,
            &body.hooks,
            &body.step,
            &body.account,
            &body.dedupe_key,
            &body.external_id,
            &body.traceparent,
        ];
        open.execution_id.is_none()
            && open.state == comeback_core::State::Pending.code()
            && open.timeout_ms.or(open.attempt_deadline_ms).or(open.expires_at).is_none()
            && open.expected.is_none()
            && open.hard_deadline == 0
            && open.dead_end_barrier == 0
            && open.expected.is_none()
            && body.cost.is_none()
            && body.rules.is_empty()
            && texts.iter().all(|text| text.is_none())
    }
}
