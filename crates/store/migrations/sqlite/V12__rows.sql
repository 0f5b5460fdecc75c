-- API keys, policies of kinds, drained workers, workers and instances as rows. They were one text each in `meta`, rewritten whole at
-- every change and read whole by every instance twice a second.

-- One row per list that instances follow. `number` counts its changes; `removed` is the number of the last change that removed a row.
create table shared_change (
  name text not null primary key,
  number integer not null,
  removed integer not null
) strict, without rowid;

insert into shared_change (name, number, removed) values ('keys', 1, 0), ('policies', 1, 0), ('drained', 1, 0);

create table api_key (
  id text not null primary key,
  namespace text not null,
  name text,
  role text not null,
  hash text not null,
  terms text not null,
  created_at integer not null,
  expires_at integer,
  revoked_at integer,
  replaced_by text,
  place integer not null,
  change integer not null
) strict, without rowid;

create index api_key_change on api_key (change);
create index api_key_namespace on api_key (namespace, created_at);

create table kind_policy (
  namespace text not null,
  kind text not null,
  body text not null,
  dialect text not null,
  change integer not null,
  primary key (namespace, kind)
) strict, without rowid;

create index kind_policy_change on kind_policy (change);

create table drained_worker (
  namespace text not null,
  name text not null,
  at integer not null,
  actor text,
  note text,
  change integer not null,
  primary key (namespace, name)
) strict, without rowid;

create table worker (
  namespace text not null,
  name text not null,
  instance text not null,
  seen_at integer not null,
  leased integer not null,
  asks text not null,
  primary key (namespace, name)
) strict, without rowid;

create table instance (
  id text not null primary key,
  version text not null,
  started_at integer not null,
  seen_at integer not null
) strict, without rowid;

insert into api_key (id, namespace, name, role, hash, terms, created_at, expires_at, revoked_at, replaced_by, place, change)
select json_extract(k.value, '$.id'), json_extract(k.value, '$.namespace'), json_extract(k.value, '$.name'),
  json_extract(k.value, '$.role'), json_extract(k.value, '$.hash'), '{}', json_extract(k.value, '$.created_at'),
  json_extract(k.value, '$.expires_at'), json_extract(k.value, '$.revoked_at'), null, k.key, 1
from meta m, json_each(m.value) k where m.key = 'api_keys';

insert into kind_policy (namespace, kind, body, dialect, change)
select n.key, p.key, json_extract(p.value, '$[0]'), json_extract(p.value, '$[1]'), 1
from meta m, json_each(m.value) n, json_each(n.value) p where m.key = 'policies';

insert into drained_worker (namespace, name, at, actor, note, change)
select n.key, w.key, json_extract(w.value, '$.at'), json_extract(w.value, '$.by'), json_extract(w.value, '$.note'), 1
from meta m, json_each(m.value) n, json_each(n.value) w where m.key = 'drained_workers';

-- An instance of the version before that still runs must not take this for a server without keys: it cannot read this, and keeps what
-- it knows.
update meta set value = 'moved to the table api_key' where key = 'api_keys';
update meta set value = 'moved to the table kind_policy' where key = 'policies';
update meta set value = 'moved to the table drained_worker' where key = 'drained_workers';
-- Instances and workers write their rows again within seconds.
delete from meta where key = 'instances';

-- Names of keys repeat, ids do not.
alter table audit add column key_id text;
