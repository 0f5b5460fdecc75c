/** Names for what the generated document calls `components['schemas'][…]`. */

import type { components, operations } from './schema';

type Schemas = components['schemas'];
type Answer<Id extends keyof operations> = operations[Id] extends {
  responses: { 200: { content: { 'application/json': infer Body } } };
}
  ? Body
  : never;

export type State = Schemas['State'];
export type ExecutionState = Schemas['ExecutionState'];
export type TaskLine = Schemas['TaskLine'];
export type Task = Schemas['Task'];
export type Attempt = Schemas['Attempt'];
export type Failure = Schemas['Failure'];
export type Decision = Schemas['Decision'];
export type Why = Schemas['Why'];
export type Forecast = Schemas['Forecast'];
export type LogEvent = Schemas['LogEvent'];
export type FeedEvent = Schemas['Event'];
export type Execution = Schemas['Execution'];
export type ExecutionLine = Schemas['ExecutionLine'];
export type Loop = Schemas['Loop'];
export type Key = Schemas['Key'];
export type NewKey = Schemas['NewKey'];
export type Role = Schemas['Role'];
export type Schedule = Schemas['Schedule'];
export type Rule = Schemas['Rule'];
export type BoundPolicy = Schemas['BoundPolicy'];
export type Simulation = Schemas['Simulation'];
export type WorkflowLine = Schemas['WorkflowLine'];
export type Workflow = Schemas['Workflow'];
export type WorkflowDiff = Schemas['WorkflowDiff'];

export type Stats = Answer<'getStats'>;
export type Upcoming = Answer<'getUpcoming'>;
export type Worker = Answer<'listWorkers'>['items'][number];
export type Instance = Answer<'listInstances'>['items'][number];
export type Me = Answer<'getMe'>;
export type Versions = Answer<'listWorkflowVersions'>;

export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}
