-- Bulk operations: what was asked for, how far each has come, which tasks it is about (ids of 16 bytes, many to a row), and how
-- each task it has changed was before.

create table operation (
  id uuid not null primary key,
  namespace int4 not null,
  version int4 not null,
  state int2 not null,
  total int4 not null,
  done int4 not null default 0,
  undone int4 not null default 0,
  due int8,
  body text not null,
  standing text not null,
  created_at int8 not null,
  updated_at int8 not null,
  ended_at int8
);

create index operation_due on operation (due) where due is not null;
create index operation_namespace on operation (namespace, id);

create table operation_part (
  operation uuid not null,
  part int4 not null,
  ids bytea not null,
  primary key (operation, part)
);

create table operation_task (
  operation uuid not null,
  task_id uuid not null,
  undone int2 not null default 0,
  was text not null,
  primary key (operation, task_id)
);
