-- Workflows inside workflows: which execution all of it began with, how deep an execution is below it, and how many tasks there are
-- in the executions below a root.
alter table execution
  add column root uuid,
  add column depth int4 not null default 0,
  add column tasks_below int8 not null default 0;

-- Gates by lane, so that each namespace gets its turn.
create index open_gate_lane on task_open (lane, id) where gated = 1 and state = 0 and needs_left = 0 and hold = 0;
