-- Statistics: sums of what attempts came to, by cell and by part of time. They are added to by whoever folds the feed, and the place
-- in the feed up to which that was done changes in the same transaction.

create table stat_fold (
  id int4 primary key check (id = 1),
  place text not null,
  at int8 not null
);

insert into stat_fold (id, place, at) values (1, '', 0);

-- What attempts that are counted together have in common. Its number follows from that.
create table stat_cell (
  id int8 primary key,
  namespace int4 not null,
  kind text not null,
  queue text not null,
  dependency text not null,
  strategy text not null,
  class int2,
  fingerprint int8,
  attempt int4 not null,
  origin int2 not null,
  last_at int8 not null
);

create index stat_cell_fingerprint on stat_cell (fingerprint) where fingerprint is not null;

create table stat (
  at int8 not null,
  cell int8 not null,
  measure int2 not null,
  value int8 not null,
  primary key (at, cell, measure)
);

-- Errors that look the same, and what people said of them.
create table error_group (
  namespace int4 not null,
  fingerprint int8 not null,
  face text not null,
  count int8 not null,
  recovered int8 not null,
  first_seen int8 not null,
  last_seen int8 not null,
  class int2,
  sample text not null,
  word text not null,
  reclassified int2,
  primary key (namespace, fingerprint)
);

create index error_group_seen on error_group (namespace, last_seen, fingerprint);
create index error_group_reclassified on error_group (namespace, fingerprint) where reclassified is not null;
