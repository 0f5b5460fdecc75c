-- Dependencies: what was asked of each, and what is remembered of it between one look and the next.

create table dependency (
  namespace int4 not null,
  name text not null,
  version int4 not null,
  settings text not null,
  standing text not null,
  due int8,
  created_at int8 not null,
  updated_at int8 not null,
  primary key (namespace, name)
) with (fillfactor = 50);

create index dependency_due on dependency (due) where due is not null;
