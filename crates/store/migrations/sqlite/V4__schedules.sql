-- Schedules: what starts by itself, how far each has been dealt with, and which execution came of which instant.

create table schedule (
  namespace integer not null,
  name text not null,
  version integer not null,
  due integer,
  body text not null,
  standing text not null,
  created_at integer not null,
  updated_at integer not null,
  primary key (namespace, name)
) strict, without rowid;

create index schedule_due on schedule (due) where due is not null;

alter table execution add column fired_by integer;
alter table execution add column schedule text;
alter table execution add column scheduled_at integer;

create index execution_schedule on execution (namespace, schedule, id) where schedule is not null;
