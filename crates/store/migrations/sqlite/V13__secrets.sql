-- Named secrets, encrypted: nonce, ciphertext and tag in `sealed`, made with the key that `key_id` names.
create table secret (
  namespace integer not null,
  name text not null,
  version integer not null,
  key_id text not null,
  sealed blob not null,
  created_at integer not null,
  updated_at integer not null,
  updated_by text,
  primary key (namespace, name)
) strict, without rowid;
