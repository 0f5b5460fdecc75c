-- What is kept from running, found at once among a million that wait. Nothing that just runs is ever in it.
create index open_held on task_open (id) where state = 5 or hold = 1 or held_until is not null;
