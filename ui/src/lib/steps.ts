/** The steps of a workflow, as the server has read it. */

import { policyText } from './words';

export interface Step {
  name: string;
  kind: string;
  needs: { step: string; when: string }[];
  /** How it is retried, in words, and who says so. */
  retry: string;
  from: string;
  condition: string | null;
}

const ORIGINS: Record<string, string> = {
  step: 'the step itself',
  defaults: 'the defaults of the workflow',
  workflow: 'the workflow',
};

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** `bound` says which policy holds for a kind that brings none. */
export function stepsOf(workflow: unknown, bound: Map<string, unknown> = new Map()): Step[] {
  const steps = isObject(workflow) && Array.isArray(workflow.steps) ? workflow.steps : [];
  return steps.filter(isObject).map((step) => {
    const kind = String(step.kind ?? step.workflow ?? 'step');
    const origins = isObject(step.origins) ? step.origins : {};
    const own = step.retry;
    const ofKind = bound.get(kind);
    const [retry, from] =
      own !== undefined && own !== null
        ? [policyText(own), ORIGINS[String(origins.retry)] ?? String(origins.retry ?? 'the step itself')]
        : ofKind !== undefined
          ? [policyText(ofKind), `the policy of ${kind}`]
          : ['never retried', 'nobody says otherwise'];
    return {
      name: String(step.name ?? kind),
      kind,
      needs: (Array.isArray(step.needs) ? step.needs : [])
        .filter(isObject)
        .map((need) => ({ step: String(need.step ?? need.task), when: String(need.when ?? 'success') })),
      retry,
      from,
      condition: typeof step.if === 'string' ? step.if : null,
    };
  });
}
