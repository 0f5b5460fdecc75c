-- Schedules: what starts by itself, how far each has been dealt with, and which execution came of which instant.

create table schedule (
  namespace int4 not null,
  name text not null,
  version int4 not null,
  due int8,
  body text not null,
  standing text not null,
  created_at int8 not null,
  updated_at int8 not null,
  primary key (namespace, name)
);

create index schedule_due on schedule (due) where due is not null;

alter table execution
  add column fired_by int2,
  add column schedule text,
  add column scheduled_at int8;

create index execution_schedule on execution (namespace, schedule, id) where schedule is not null;
