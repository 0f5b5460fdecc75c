-- What people and programs did from outside. Rows are added and never changed.

create table audit (
  id blob not null primary key,
  at integer not null,
  namespace text,
  did integer not null,
  subject text not null,
  actor text,
  key text,
  note text,
  request text,
  before text,
  after text
) strict, without rowid;

create index audit_namespace on audit (namespace, id);
create index audit_subject on audit (subject, id);
create index audit_actor on audit (actor, id);

create trigger audit_is_not_changed before update on audit begin
  select raise(abort, 'what was done stays written');
end;
create trigger audit_is_not_deleted before delete on audit begin
  select raise(abort, 'what was done stays written');
end;

-- Payloads as they were before somebody edited them. The one in use is in the body of the task.

create table task_payload (
  task_id blob not null,
  version integer not null,
  payload text,
  last_run integer not null,
  at integer not null,
  actor text,
  primary key (task_id, version)
) strict, without rowid;

-- Retries that were booked in the budgets of accounts, by day and by month.

create table account_use (
  namespace integer not null,
  account text not null,
  period text not null,
  retries integer not null,
  cost integer not null,
  primary key (namespace, account, period)
) strict, without rowid;

-- Accounts: what each holds, what of that its open tasks have reserved, and what was spent.

create table account (
  namespace integer not null,
  name text not null,
  held integer not null,
  reserved integer not null,
  spent integer not null,
  terms text not null,
  created_at integer not null,
  updated_at integer not null,
  primary key (namespace, name)
) strict, without rowid;
