-- Admission rules: what they say, and the lanes of tasks that fall under them.

create table rule (
  namespace int4 not null references namespace (id),
  name text not null,
  body text not null,
  at int8 not null,
  primary key (namespace, name)
);

-- Which rules tasks were put under last, and how far those have been moved that were there before. Who puts tasks somewhere reads
-- it in the same transaction; who changes a rule locks the table, and so waits for them.
create table rule_state (
  generation int8 not null,
  settled int8 not null,
  swept uuid
);

insert into rule_state (generation, settled) values (0, 0);

-- A lane whose tasks fall under limits. Its numbers begin where those of other lanes never come, so that one look at an index
-- finds what waits or runs under a rule.
create table ruled_lane (
  id int4 primary key check (id >= 1073741824),
  lane int4 not null references lane (id),
  digest bytea not null,
  limits text not null,
  unique (lane, digest)
);

-- The rules that a task carries itself.
alter table task add column rules text;

create index open_ruled on task_open (lane) where state in (2, 3) and lane >= 1073741824;
