/** Admission rules: the body that writes one, and its limit in words. */

import type { NewRule, Rule } from '../api/types';

/** The field that holds the limit of a rule; a rule that is only fair has none. */
export function limitKind(rule: Rule): 'max_running' | 'capacity' | null {
  if (rule.max_running !== null) return 'max_running';
  return rule.capacity !== null ? 'capacity' : null;
}

/** The body of a PUT that leaves the rule as it is: a PUT replaces all of it. */
export function ruleBody(rule: Rule): NewRule {
  const { queue, kind, labels } = rule.match;
  const limit = limitKind(rule);
  return {
    match: { ...(queue ? { queue } : {}), ...(kind ? { kind } : {}), labels },
    per: rule.per,
    fair: rule.fair,
    ...(limit ? { [limit]: rule[limit] } : {}),
  };
}

/** The same rule with another limit; without a number it has none. */
export function withLimit(rule: Rule, limit: number | null): NewRule {
  const { max_running: _, capacity: __, ...rest } = ruleBody(rule);
  return limit === null ? rest : { ...rest, [limitKind(rule) ?? 'max_running']: limit };
}

export function limitWords(rule: Rule): string {
  const kind = limitKind(rule);
  const limit =
    kind === null ? 'no limit' : kind === 'capacity' ? `weight ${rule.capacity}` : `${rule.max_running} at once`;
  return rule.fair ? `${limit}, fair` : limit;
}
