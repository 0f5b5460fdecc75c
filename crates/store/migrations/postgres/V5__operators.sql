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
