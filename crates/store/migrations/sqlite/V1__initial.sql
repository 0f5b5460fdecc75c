-- The whole present and past of a namespace's tasks. Times are milliseconds since the epoch, ids are 16 bytes, states and
-- other words are the numbers that comeback-core gives them. The twin of this file for PostgreSQL has the same tables.

create table meta (
  key text primary key,
  value text not null
) strict, without rowid;

create table namespace (
  id integer primary key,
  name text not null unique
) strict;

-- Where tasks wait: everything that makes two tasks interchangeable for a claim. An empty dependency means none.
create table lane (
  id integer primary key,
  namespace integer not null references namespace (id),
  queue text not null,
  kind text not null,
  executor integer not null,
  dependency text not null,
  shared integer not null,
  unique (namespace, queue, kind, executor, dependency, shared)
) strict;

-- Policies are stored once and never changed; tasks keep the number.
create table policy (
  id integer primary key,
  digest blob not null unique,
  body text not null
) strict;

-- The body of a task: written once.
create table task (
  id blob primary key,
  namespace integer not null,
  lane integer not null,
  execution_id blob,
  key text,
  name text,
  priority integer not null,
  policy integer,
  payload text,
  labels text,
  executor text,
  hooks text,
  timeout_ms integer,
  attempt_deadline_ms integer,
  start_at integer,
  expires_at integer,
  hard_deadline integer not null,
  dead_end_barrier integer not null,
  account text,
  cost integer,
  dedupe_key text,
  external_id text,
  traceparent text,
  submitted_at integer not null
) strict, without rowid;

create index task_lane on task (lane, id);
create index task_execution on task (execution_id, id) where execution_id is not null;
create index task_external on task (namespace, external_id) where external_id is not null;

-- The present of every task that is not over: one narrow row, gone when the task ends.
create table task_open (
  id blob primary key,
  lane integer not null,
  execution_id blob,
  policy integer,
  state integer not null check (state between 0 and 5),
  prio integer not null,
  hold integer not null,
  submitted_at integer not null,
  version integer not null,
  seq integer not null,
  unwritten integer not null,
  ready_at integer,
  attempt integer not null,
  lost integer not null,
  throttled integer not null,
  snoozed integer not null,
  rule_counts blob,
  cycle integer not null,
  run integer not null,
  lease_no integer not null,
  worker text,
  lease_at integer,
  lease_expires integer,
  due integer,
  start_at integer,
  next_retry_at integer,
  held_until integer,
  held_by text,
  timeout_ms integer,
  attempt_deadline_ms integer,
  timeout_at integer,
  expires_at integer,
  hard_deadline integer not null,
  first_failed_at integer,
  started_at integer,
  updated_at integer not null,
  paused_from integer,
  parked integer not null,
  reason integer,
  class integer,
  fingerprint integer,
  expected integer,
  success integer not null,
  failures integer not null,
  needs_left integer not null,
  children_left integer not null,
  dead_end_barrier integer not null,
  dedupe integer not null,
  progress text
) strict, without rowid;

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
  id blob primary key,
  lane integer not null,
  execution_id blob,
  policy integer,
  state integer not null check (state between 6 and 10),
  version integer not null,
  seq integer not null,
  attempt integer not null,
  lost integer not null,
  throttled integer not null,
  snoozed integer not null,
  cycle integer not null,
  run integer not null,
  lease_no integer not null,
  started_at integer,
  ended_at integer not null,
  updated_at integer not null,
  first_failed_at integer,
  expires_at integer,
  reason integer,
  class integer,
  fingerprint integer,
  expected integer,
  success integer not null,
  failures integer not null
) strict, without rowid;

create index done_state on task_done (state, id) where state <> 6;
create index done_fingerprint on task_done (fingerprint, id) where fingerprint is not null;

-- The past: one row per attempt or act, each standing for one or more events in a row.
create table history (
  subject blob not null,
  seq integer not null,
  execution_id blob,
  events blob not null,
  at integer not null,
  ready_at integer,
  started_at integer,
  cycle integer not null,
  run integer not null,
  attempt integer not null,
  lease_no integer not null,
  outcome integer,
  worker text,
  actor text,
  result text,
  error text,
  decision text,
  data text,
  primary key (subject, seq)
) strict, without rowid;

create index history_execution on history (execution_id, seq) where execution_id is not null;

create table execution (
  id blob primary key,
  namespace integer not null,
  state integer not null check (state between 0 and 5),
  version integer not null,
  seq integer not null,
  total integer not null,
  open integer not null,
  unhandled integer not null,
  fail_fast integer not null,
  dead_end_cancel integer not null,
  name text,
  labels text,
  external_id text,
  created_at integer not null,
  started_at integer,
  ended_at integer,
  updated_at integer not null
) strict, without rowid;

create index execution_state on execution (namespace, state, id);

create table edge (
  from_id blob not null,
  to_id blob not null,
  met_when integer not null,
  on_unmet integer not null,
  primary key (from_id, to_id)
) strict, without rowid;

create index edge_to on edge (to_id, from_id);

-- What happened, in the order of commits: one row per transaction and namespace, items of 24 bytes (id, first, last).
create table feed (
  id integer primary key autoincrement,
  at integer not null,
  namespace integer not null,
  items blob not null
) strict;

create table idempotency (
  namespace integer not null,
  scope text not null,
  key text not null,
  digest blob not null,
  answer text not null,
  at integer not null,
  primary key (namespace, scope, key)
) strict, without rowid;

create index idempotency_at on idempotency (at);

-- The dedupe keys of open tasks.
create table dedupe (
  namespace integer not null,
  key text not null,
  task_id blob not null,
  primary key (namespace, key)
) strict, without rowid;

-- Loops that are paused, and until when.
create table loop_pause (
  name text primary key,
  until integer not null,
  note text,
  actor text,
  at integer not null
) strict, without rowid;
