-- Statistics: sums of what attempts came to, by cell and by part of time. They are added to by whoever folds the feed, and the place
-- in the feed up to which that was done changes in the same transaction.

create table stat_fold (
  id integer primary key check (id = 1),
  place text not null,
  at integer not null
) strict;

insert into stat_fold (id, place, at) values (1, '', 0);

-- What attempts that are counted together have in common. Its number follows from that.
create table stat_cell (
  id integer primary key,
  namespace integer not null,
  kind text not null,
  queue text not null,
  dependency text not null,
  strategy text not null,
  class integer,
  fingerprint integer,
  attempt integer not null,
  origin integer not null,
  last_at integer not null
) strict;

create index stat_cell_fingerprint on stat_cell (fingerprint) where fingerprint is not null;

create table stat (
  at integer not null,
  cell integer not null,
  measure integer not null,
  value integer not null,
  primary key (at, cell, measure)
) strict, without rowid;

-- Errors that look the same, and what people said of them.
create table error_group (
  namespace integer not null,
  fingerprint integer not null,
  face text not null,
  count integer not null,
  recovered integer not null,
  first_seen integer not null,
  last_seen integer not null,
  class integer,
  sample text not null,
  word text not null,
  reclassified integer,
  primary key (namespace, fingerprint)
) strict, without rowid;

create index error_group_seen on error_group (namespace, last_seen, fingerprint);
create index error_group_reclassified on error_group (namespace, fingerprint) where reclassified is not null;
