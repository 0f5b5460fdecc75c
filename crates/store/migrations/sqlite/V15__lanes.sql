-- Lanes with limits are for open tasks alone, so that they can be forgotten with the last of them: what refers to one otherwise
-- refers to the same lane without limits from now on.
update task set lane = (select r.lane from ruled_lane r where r.id = task.lane)
  where lane >= 1073741824 and exists (select 1 from ruled_lane r where r.id = task.lane);
update task_done set lane = (select r.lane from ruled_lane r where r.id = task_done.lane)
  where lane >= 1073741824 and exists (select 1 from ruled_lane r where r.id = task_done.lane);

create index open_limited on task_open (lane) where lane >= 1073741824;

-- Which namespace brought a policy, and whether it is about to be deleted.
alter table policy add column namespace integer;
alter table policy add column retired integer;

create index policy_namespace on policy (namespace) where namespace is not null;
