-- An execution that is done again: the first of them all, and which retry of that it is.
alter table execution
  add column retry_root uuid,
  add column retry_number int4 not null default 0;

update execution set retry_root = retry_of, retry_number = 1 where retry_of is not null;
