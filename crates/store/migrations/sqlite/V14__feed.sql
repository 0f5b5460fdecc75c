-- Rows of the feed are numbered in the order of their commits here, because there is one writer: they need no position beside that.
-- The number is the same as in the other database.
select 1;
