-- What people and programs did from outside. Rows are added and never changed.

create table audit (
  id uuid primary key,
  at int8 not null,
  namespace text,
  did int2 not null,
  subject text not null,
  actor text,
  key text,
  note text,
  request text,
  before text,
  after text
);

create index audit_namespace on audit (namespace, id);
create index audit_subject on audit (subject, id);
create index audit_actor on audit (actor, id);

create function audit_stays() returns trigger language plpgsql as $$
begin
  raise exception 'what was done stays written';
end;
$$;

create trigger audit_is_not_changed before update or delete on audit
  for each statement execute function audit_stays();

-- Payloads as they were before somebody edited them. The one in use is in the body of the task.

create table task_payload (
  task_id uuid not null,
  version int4 not null,
  payload text,
  last_run int4 not null,
  at int8 not null,
  actor text,
  primary key (task_id, version)
);

-- Retries that were booked in the budgets of accounts, by day and by month.

create table account_use (
  namespace int4 not null,
  account text not null,
  period text not null,
  retries int8 not null,
  cost int8 not null,
  primary key (namespace, account, period)
);

-- Accounts: what each holds, what of that its open tasks have reserved, and what was spent.

create table account (
  namespace int4 not null,
  name text not null,
  held int8 not null,
  reserved int8 not null,
  spent int8 not null,
  terms text not null,
  created_at int8 not null,
  updated_at int8 not null,
  primary key (namespace, name)
) with (fillfactor = 70);
