-- Bulk operations: what was asked for, how far each has come, which tasks it is about (ids of 16 bytes, many to a row), and how
-- each task it has changed was before.

create table operation (
  id blob not null primary key,
  namespace integer not null,
  version integer not null,
  state integer not null,
  total integer not null,
  done integer not null default 0,
  undone integer not null default 0,
  due integer,
  body text not null,
  standing text not null,
  created_at integer not null,
  updated_at integer not null,
  ended_at integer
) strict, without rowid;

create index operation_due on operation (due) where due is not null;
create index operation_namespace on operation (namespace, id);

create table operation_part (
  operation blob not null,
  part integer not null,
  ids blob not null,
  primary key (operation, part)
) strict;

create table operation_task (
  operation blob not null,
  task_id blob not null,
  undone integer not null default 0,
  was text not null,
  primary key (operation, task_id)
) strict, without rowid;
