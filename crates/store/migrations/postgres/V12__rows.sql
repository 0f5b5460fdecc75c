-- API keys, policies of kinds, drained workers, workers and instances as rows. They were one text each in `meta`, rewritten whole at
-- every change and read whole by every instance twice a second.

-- One row per list that instances follow. `number` counts its changes; `removed` is the number of the last change that removed a row.
create table shared_change (
  name text not null primary key,
  number int8 not null,
  removed int8 not null
);

insert into shared_change (name, number, removed) values ('keys', 1, 0), ('policies', 1, 0), ('drained', 1, 0);

create table api_key (
  id text not null primary key,
  namespace text not null,
  name text,
  role text not null,
  hash text not null,
  terms text not null,
  created_at int8 not null,
  expires_at int8,
  revoked_at int8,
  replaced_by text,
  place int8 not null,
  change int8 not null
);

create index api_key_change on api_key (change);
create index api_key_namespace on api_key (namespace, created_at);

create table kind_policy (
  namespace text not null,
  kind text not null,
  body text not null,
  dialect text not null,
  change int8 not null,
  primary key (namespace, kind)
);

create index kind_policy_change on kind_policy (change);

create table drained_worker (
  namespace text not null,
  name text not null,
  at int8 not null,
  actor text,
  note text,
  change int8 not null,
  primary key (namespace, name)
);

create table worker (
  namespace text not null,
  name text not null,
  instance text not null,
  seen_at int8 not null,
  leased int8 not null,
  asks text not null,
  primary key (namespace, name)
) with (fillfactor = 70);

create table instance (
  id text not null primary key,
  version text not null,
  started_at int8 not null,
  seen_at int8 not null
);

insert into api_key (id, namespace, name, role, hash, terms, created_at, expires_at, revoked_at, replaced_by, place, change)
select k.value->>'id', k.value->>'namespace', k.value->>'name', k.value->>'role', k.value->>'hash', '{}',
  (k.value->>'created_at')::int8, (k.value->>'expires_at')::int8, (k.value->>'revoked_at')::int8, null, k.place, 1
from meta m, json_array_elements(m.value::json) with ordinality k(value, place) where m.key = 'api_keys';

insert into kind_policy (namespace, kind, body, dialect, change)
select n.key, p.key, p.value->>0, p.value->>1, 1
from meta m, json_each(m.value::json) n(key, value), json_each(n.value) p(key, value) where m.key = 'policies';

insert into drained_worker (namespace, name, at, actor, note, change)
select n.key, w.key, (w.value->>'at')::int8, w.value->>'by', w.value->>'note', 1
from meta m, json_each(m.value::json) n(key, value), json_each(n.value) w(key, value) where m.key = 'drained_workers';

-- An instance of the version before that still runs must not take this for a server without keys: it cannot read this, and keeps what
-- it knows.
update meta set value = 'moved to the table api_key' where key = 'api_keys';
update meta set value = 'moved to the table kind_policy' where key = 'policies';
update meta set value = 'moved to the table drained_worker' where key = 'drained_workers';
-- Instances and workers write their rows again within seconds.
delete from meta where key = 'instances';

-- Names of keys repeat, ids do not.
alter table audit add column key_id text;
