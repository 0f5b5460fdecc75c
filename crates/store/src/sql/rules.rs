//! Admission rules.

use super::sql;

sql! {
    GENERATION = "select generation from rule_state";
    ALL = "select n.name, r.body from rule r join namespace n on n.id = r.namespace order by r.namespace, r.name";
    STATE = "select generation, settled, swept from rule_state";
    /// Tasks that were placed stay placed: only the dictionary is another one.
    NEXT_GENERATION = "update rule_state set generation = generation + 1,
           settled = case when settled = generation then generation + 1 else settled end returning generation";
}
