-- The whole present and past of a namespace's tasks. Times are milliseconds since the epoch, ids are uuids, states and
-- other words are the numbers that comeback-core gives them. The twin of this file for SQLite has the same tables.

create table meta (
  key text primary key,
  value text not null
);

create table namespace (
  id int4 generated always as identity primary key,
  name text not null unique
);

-- Where tasks wait: everything that makes two tasks interchangeable for a claim. An empty dependency means none.
create table lane (
  id int4 generated always as identity primary key,
  namespace int4 not null references namespace (id),
  queue text not null,
  kind text not null,
  executor int2 not null,
  dependency text not null,
  shared int2 not null,
  unique (namespace, queue, kind, executor, dependency, shared)
);

-- Policies are stored once and never changed; tasks keep the number.
create table policy (
  id int4 generated always as identity primary key,
  digest bytea not null unique,
  body text not null
);

-- The body of a task: written once.
create table task (
  id uuid primary key,
  namespace int4 not null,
  lane int4 not null,
  execution_id uuid,
  key text,
  name text,
  priority int2 not null,
  policy int4,
  payload text,
  labels jsonb,
  executor text,
  hooks text,
  timeout_ms int8,
  attempt_deadline_ms int8,
  start_at int8,
  expires_at int8,
  hard_deadline int2 not null,
  dead_end_barrier int2 not null,
  account text,
  cost int4,
  dedupe_key text,
  external_id text,
  traceparent text,
  submitted_at int8 not null
);

create index task_lane on task (lane, id);
create index task_execution on task (execution_id, id) where execution_id is not null;
create index task_external on task (namespace, external_id) where external_id is not null;

-- The present of every task that is not over: one narrow row, gone when the task ends.
create table task_open (
  id uuid primary key,
  lane int4 not null,
  execution_id uuid,
  policy int4,
  state int2 not null check (state between 0 and 5),
  prio int2 not null,
  hold int2 not null,
  submitted_at int8 not null,
  version int4 not null,
  seq int4 not null,
  unwritten int2 not null,
  ready_at int8,
  attempt int4 not null,
  lost int4 not null,
  throttled int4 not null,
  snoozed int4 not null,
  rule_counts bytea,
  cycle int4 not null,
  run int4 not null,
  lease_no int4 not null,
  worker text,
  lease_at int8,
  lease_expires int8,
  due int8,
  start_at int8,
  next_retry_at int8,
  held_until int8,
  held_by text,
  timeout_ms int8,
  attempt_deadline_ms int8,
  timeout_at int8,
  expires_at int8,
  hard_deadline int2 not null,
  first_failed_at int8,
  started_at int8,
  updated_at int8 not null,
  paused_from int2,
  parked int2 not null,
  reason int2,
  class int2,
  fingerprint int8,
  expected int4,
  success int4 not null,
  failures int4 not null,
  needs_left int4 not null,
  children_left int4 not null,
  dead_end_barrier int2 not null,
  dedupe int2 not null,
  progress text
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
  autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);

create index open_ready on task_open (lane, prio, submitted_at, id) where state = 1 and hold = 0;
create index open_retry on task_open (due, id) where state = 4 and hold = 0;
create index open_start on task_open (due, id) where state = 0 and hold = 0 and due is not null;
create index open_lease on task_open (lease_expires, id) where lease_expires is not null;
create index open_timeout on task_open (timeout_at, id) where timeout_at is not null;
create index open_deadline on task_open (expires_at, id)
  where expires_at is not null and (state in (0, 1, 4) or (hard_deadline = 1 and state in (2, 3)));
create index open_execution on task_open (execution_id) where execution_id is not null;
create index open_fingerprint on task_open (fingerprint, id) where fingerprint is not null;

-- The end of every task that is over.
create table task_done (
  id uuid primary key,
  lane int4 not null,
  execution_id uuid,
  policy int4,
  state int2 not null check (state between 6 and 10),
  version int4 not null,
  seq int4 not null,
  attempt int4 not null,
  lost int4 not null,
  throttled int4 not null,
  snoozed int4 not null,
  cycle int4 not null,
  run int4 not null,
  lease_no int4 not null,
  started_at int8,
  ended_at int8 not null,
  updated_at int8 not null,
  first_failed_at int8,
  expires_at int8,
  reason int2,
  class int2,
  fingerprint int8,
  expected int4,
  success int4 not null,
  failures int4 not null
);

create index done_state on task_done (state, id) where state <> 6;
create index done_fingerprint on task_done (fingerprint, id) where fingerprint is not null;

-- The past: one row per attempt or act, each standing for one or more events in a row.
create table history (
  subject uuid not null,
  seq int4 not null,
  execution_id uuid,
  events bytea not null,
  at int8 not null,
  ready_at int8,
  started_at int8,
  cycle int4 not null,
  run int4 not null,
  attempt int4 not null,
  lease_no int4 not null,
  outcome int2,
  worker text,
  actor text,
  result text,
  error text,
  decision text,
  data text,
  primary key (subject, seq)
);

create index history_execution on history (execution_id, seq) where execution_id is not null;

create table execution (
  id uuid primary key,
  namespace int4 not null,
  state int2 not null check (state between 0 and 5),
  version int4 not null,
  seq int4 not null,
  total int4 not null,
  open int4 not null,
  unhandled int4 not null,
  fail_fast int2 not null,
  dead_end_cancel int2 not null,
  name text,
  labels jsonb,
  external_id text,
  created_at int8 not null,
  started_at int8,
  ended_at int8,
  updated_at int8 not null
);

create index execution_state on execution (namespace, state, id);

create table edge (
  from_id uuid not null,
  to_id uuid not null,
  met_when int2 not null,
  on_unmet int2 not null,
  primary key (from_id, to_id)
);

create index edge_to on edge (to_id, from_id);

-- What happened: one row per transaction and namespace. The transaction's number is part of the order, so that a reader
-- can wait for everything that began before it to end and never skips what commits late.
create table feed (
  id int8 generated always as identity primary key,
  xid xid8 not null default pg_current_xact_id(),
  at int8 not null,
  namespace int4 not null,
  ids uuid[] not null,
  firsts int4[] not null,
  lasts int4[] not null
);

create index feed_order on feed (xid, id);

create table idempotency (
  namespace int4 not null,
  scope text not null,
  key text not null,
  digest bytea not null,
  answer text not null,
  at int8 not null,
  primary key (namespace, scope, key)
);

create index idempotency_at on idempotency (at);

-- The dedupe keys of open tasks.
create table dedupe (
  namespace int4 not null,
  key text not null,
  task_id uuid not null,
  primary key (namespace, key)
);

-- Loops that are paused, and until when.
create table loop_pause (
  name text primary key,
  until int8 not null,
  note text,
  actor text,
  at int8 not null
);
