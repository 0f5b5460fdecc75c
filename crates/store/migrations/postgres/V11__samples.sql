-- What nobody searches by is not worth its samples: of arrays with a thousand ids each ANALYZE counts every element, which keeps a core
-- busy for seconds, once a minute under load.
alter table feed
  alter column ids set statistics 0,
  alter column firsts set statistics 0,
  alter column lasts set statistics 0;
alter table history
  alter column events set statistics 0,
  alter column result set statistics 0,
  alter column error set statistics 0,
  alter column decision set statistics 0,
  alter column data set statistics 0;
alter table task alter column payload set statistics 0;
-- Ids hardly get smaller by trying.
alter table feed alter column ids set storage external;
-- The pages at its end are needed again at once; to give them back would lock everybody out for that time.
alter table task_open set (vacuum_truncate = false);
