-- The order in which the feed is read. A row of the feed gets its position after its transaction has committed, so nothing appears
-- behind a reader, and no open transaction, ours or another program's, keeps a reader waiting. Rows are only added here.
create table feed_position (
  position int8 primary key,
  -- A row of the feed, or 0 for a place that holds a snapshot only.
  feed_id int8 not null,
  -- On the last row of each pass: what had committed when it ran. The next pass takes what had not.
  snapshot pg_snapshot
);

alter table feed_position alter column snapshot set statistics 0;

-- Cursors from before name a transaction and a row. What is there now keeps that order, so they can be translated.
with told as (
  insert into feed_position (position, feed_id)
  select row_number() over (order by xid, id), id from feed
  returning position
)
insert into feed_position (position, feed_id, snapshot)
select coalesce(max(position), 0) + 1, 0, pg_current_snapshot() from told;

insert into meta (key, value) select 'feed_legacy_end', max(position)::text from feed_position
on conflict (key) do update set value = excluded.value;

create unique index feed_position_row on feed_position (feed_id) where feed_id > 0;
