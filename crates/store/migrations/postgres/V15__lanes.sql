-- Lanes with limits are for open tasks alone, so that they can be forgotten with the last of them: what refers to one otherwise
-- refers to the same lane without limits from now on.
update task t set lane = r.lane from ruled_lane r where t.lane = r.id;
update task_done d set lane = r.lane from ruled_lane r where d.lane = r.id;

create index open_limited on task_open (lane) where lane >= 1073741824;

-- Which namespace brought a policy, and whether it is about to be deleted.
alter table policy add column namespace int4;
alter table policy add column retired int8;

create index policy_namespace on policy (namespace) where namespace is not null;

-- Numbers that were deleted, by the generation in `rule_state` from which on nobody uses them: other instances drop them too.
create table forgotten (
  generation int8 primary key,
  at int8 not null,
  lanes int4[] not null,
  policies int4[] not null,
  -- Too old to be kept: who has not seen it reads everything again.
  purged boolean not null default false
);
