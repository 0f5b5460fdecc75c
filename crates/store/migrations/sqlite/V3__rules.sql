-- Admission rules: what they say, and the lanes of tasks that fall under them.

create table rule (
  namespace integer not null references namespace (id),
  name text not null,
  body text not null,
  at integer not null,
  primary key (namespace, name)
) strict, without rowid;

-- Which rules tasks were put under last, and how far those have been moved that were there before.
create table rule_state (
  generation integer not null,
  settled integer not null,
  swept blob
) strict;

insert into rule_state (generation, settled) values (0, 0);

-- A lane whose tasks fall under limits. Its numbers begin where those of other lanes never come, so that one look at an index
-- finds what waits or runs under a rule.
create table ruled_lane (
  id integer primary key check (id >= 1073741824),
  lane integer not null references lane (id),
  digest blob not null,
  limits text not null,
  unique (lane, digest)
) strict;

-- The rules that a task carries itself.
alter table task add column rules text;

create index open_ruled on task_open (lane) where state in (2, 3) and lane >= 1073741824;
