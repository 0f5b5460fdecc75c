-- Workflows inside workflows: which execution all of it began with, how deep an execution is below it, and how many tasks there are
-- in the executions below a root.
alter table execution add column root blob;
alter table execution add column depth integer not null default 0;
alter table execution add column tasks_below integer not null default 0;

-- Gates by lane, so that each namespace gets its turn.
create index open_gate_lane on task_open (lane, id) where gated = 1 and state = 0 and needs_left = 0 and hold = 0;
