-- What others hear of by themselves: subscriptions and alerts, and how far each has come.

create table subscription (
  namespace integer not null,
  name text not null,
  version integer not null,
  due integer,
  body text not null,
  standing text not null,
  created_at integer not null,
  updated_at integer not null,
  primary key (namespace, name)
) strict, without rowid;

create index subscription_due on subscription (due) where due is not null;

create table alert (
  namespace integer not null,
  name text not null,
  version integer not null,
  due integer,
  body text not null,
  standing text not null,
  created_at integer not null,
  updated_at integer not null,
  primary key (namespace, name)
) strict, without rowid;

create index alert_due on alert (due) where due is not null;
