-- What others hear of by themselves: subscriptions and alerts, and how far each has come.

create table subscription (
  namespace int4 not null,
  name text not null,
  version int4 not null,
  due int8,
  body text not null,
  standing text not null,
  created_at int8 not null,
  updated_at int8 not null,
  primary key (namespace, name)
);

create index subscription_due on subscription (due) where due is not null;

create table alert (
  namespace int4 not null,
  name text not null,
  version int4 not null,
  due int8,
  body text not null,
  standing text not null,
  created_at int8 not null,
  updated_at int8 not null,
  primary key (namespace, name)
);

create index alert_due on alert (due) where due is not null;
