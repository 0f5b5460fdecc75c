-- Dependencies: what was asked of each, and what is remembered of it between one look and the next.

create table dependency (
  namespace integer not null,
  name text not null,
  version integer not null,
  settings text not null,
  standing text not null,
  due integer,
  created_at integer not null,
  updated_at integer not null,
  primary key (namespace, name)
) strict, without rowid;

create index dependency_due on dependency (due) where due is not null;
