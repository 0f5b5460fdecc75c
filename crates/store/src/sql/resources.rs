//! Resources under a name.

use super::sql;

sql! {
    DEPENDENCIES = "select n.name, d.name, d.version, d.settings, d.standing, d.created_at, d.updated_at
           from dependency d join namespace n on n.id = d.namespace";
    NEXT_DEPENDENCY = "select min(due) from dependency where due > $1";
    /// The documents of a collection.
    DOCUMENTS = "select d.name, d.version, d.body, d.at, n.name from document d join namespace n on n.id = d.namespace
           where n.name = $1 and d.shelf = $2";
    SECRETS = "select n.name, s.name, s.version, s.key_id, s.sealed, s.created_at, s.updated_at, s.updated_by
           from secret s join namespace n on n.id = s.namespace";
    COUNT_SECRETS = "select count(*) from secret where namespace = $1";
    RESEAL_SECRET = "update secret set version = version + 1, key_id = $4, sealed = $5
           where namespace = (select id from namespace where name = $1) and name = $2 and version = $3";
    /// The accounts of a namespace.
    ACCOUNTS = "select a.name, a.held, a.reserved, a.spent, a.terms, a.created_at, a.updated_at
           from account a join namespace n on n.id = a.namespace where n.name = $1";
    CREDITS_LEFT = "select held - reserved from account where namespace = $1 and name = $2";
}
