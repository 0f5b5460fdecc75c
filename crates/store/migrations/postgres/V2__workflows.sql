-- Workflows: documents with versions, executions that came from one, and tasks that are steps of one.

create table document (
  namespace int4 not null,
  shelf text not null,
  name text not null,
  version int4 not null,
  body text not null,
  at int8 not null,
  primary key (namespace, shelf, name, version)
);

alter table execution
  add column workflow text,
  add column workflow_version int4,
  add column input text,
  add column parent_task uuid,
  add column parent_run int4,
  add column retry_of uuid;

create index execution_parent on execution (parent_task, parent_run) where parent_task is not null;
create index execution_called on execution (id) where parent_task is not null and state in (0, 1, 2);

-- What makes a task a step: its templates, its condition, what it goes over.
alter table task
  add column step text,
  add column gated int2 not null default 0,
  add column hooked int2 not null default 0;

create index task_key on task (execution_id, key) where execution_id is not null and key is not null;

alter table task_open
  add column gated int2 not null default 0,
  add column hooked int2 not null default 0;

create index open_gate on task_open (id) where gated = 1 and state = 0 and needs_left = 0 and hold = 0;

-- Runs that nobody holds a lease for: they wait for something outside, or for an execution of their own.
create index open_leaseless on task_open (lane, id) where state in (3, 5) and lease_at is not null and lease_expires is null;
