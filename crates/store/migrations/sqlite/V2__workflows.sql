-- Workflows: documents with versions, executions that came from one, and tasks that are steps of one.

create table document (
  namespace integer not null,
  shelf text not null,
  name text not null,
  version integer not null,
  body text not null,
  at integer not null,
  primary key (namespace, shelf, name, version)
) strict, without rowid;

alter table execution add column workflow text;
alter table execution add column workflow_version integer;
alter table execution add column input text;
alter table execution add column parent_task blob;
alter table execution add column parent_run integer;
alter table execution add column retry_of blob;

create index execution_parent on execution (parent_task, parent_run) where parent_task is not null;
create index execution_called on execution (id) where parent_task is not null and state in (0, 1, 2);

-- What makes a task a step: its templates, its condition, what it goes over.
alter table task add column step text;
alter table task add column gated integer not null default 0;
alter table task add column hooked integer not null default 0;

create index task_key on task (execution_id, key) where execution_id is not null and key is not null;

alter table task_open add column gated integer not null default 0;
alter table task_open add column hooked integer not null default 0;

create index open_gate on task_open (id) where gated = 1 and state = 0 and needs_left = 0 and hold = 0;

-- Runs that nobody holds a lease for: they wait for something outside, or for an execution of their own.
create index open_leaseless on task_open (lane, id) where state in (3, 5) and lease_at is not null and lease_expires is null;
