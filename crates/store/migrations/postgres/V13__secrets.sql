-- Named secrets, encrypted: nonce, ciphertext and tag in `sealed`, made with the key that `key_id` names.
create table secret (
  namespace int4 not null,
  name text not null,
  version int4 not null,
  key_id text not null,
  sealed bytea not null,
  created_at int8 not null,
  updated_at int8 not null,
  updated_by text,
  primary key (namespace, name)
);
