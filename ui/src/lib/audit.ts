/** The audit log: links and words of its entries. */

import type { ActLine } from '../api/types';
import { differences, type Difference } from './patch';
import { short } from './words';

/** The page of the subject; `null` if it has none. */
export function subjectPage({ act, subject }: Pick<ActLine, 'act' | 'subject'>): string | null {
  const [what] = act.split('.');
  switch (what) {
    case 'task':
      return `t/${encodeURIComponent(subject)}`;
    case 'execution':
      return `x/${encodeURIComponent(subject)}`;
    case 'workflow':
      return `workflows/${subject.split('/').map(encodeURIComponent).join('/')}`;
    case 'schedule':
      return 'schedules';
    case 'worker':
      return 'workers';
    case 'rule':
      return 'guards/rules';
    case 'dependency':
      return 'guards/dependencies';
    case 'subscription':
      return 'admin/subscriptions';
    case 'alert':
      return 'admin/alerts';
    case 'operation':
      return `admin/operations/${encodeURIComponent(subject)}`;
    case 'error':
      return `e/${encodeURIComponent(subject)}`;
    case 'account':
      return 'guards/accounts';
    case 'loop':
    case 'cleanup':
      return 'admin/loops';
    case 'policy':
      return 'admin/policies';
    case 'key':
      return 'admin/keys';
    case 'failed':
      return 'tasks';
    case 'stuck':
      return 'admin/stuck';
    default:
      return null;
  }
}

/** Ids are long; names are names. */
export const subjectName = (subject: string) => (/^[0-9a-f]{8}-[0-9a-f]{4}-/.test(subject) ? short(subject) : subject);

/** The changes of an entry, if they were kept. */
export function changesOf({ before, after }: Pick<ActLine, 'before' | 'after'>): Difference[] {
  if ((before ?? null) === null && (after ?? null) === null) return [];
  return differences(before ?? {}, after ?? {});
}
