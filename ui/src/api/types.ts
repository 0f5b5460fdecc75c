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
export type ActLine = Schemas['ActLine'];
export type Account = Schemas['Account'];
export type AccountChange = Schemas['AccountChange'];
export type PayloadVersion = Schemas['PayloadVersion'];
export type ErrorGroup = Schemas['ErrorGroup'];
export type ErrorGroupDetail = Schemas['ErrorGroupDetail'];
export type RetryStats = Schemas['RetryStats'];
export type Dependency = Schemas['Dependency'];
export type Subscription = Schemas['Subscription'];
export type SubscriptionWithSecret = Schemas['NewSubscriptionSecret'];
export type NewSubscription = Schemas['NewSubscription'];
export type Delivery = Schemas['Delivery'];
export type Alert = Schemas['Alert'];
export type NewAlert = Schemas['NewAlert'];
export type AlertBacktest = Schemas['AlertBacktestAnswer'];
export type BulkAction = Schemas['BulkAction'];
export type BulkRequest = Schemas['Bulk'];
export type Excluded = Schemas['Excluded'];
export type Operation = Schemas['Operation'];
export type Key = Schemas['Key'];
export type NewKey = Schemas['NewKey'];
export type Role = Schemas['Role'];
export type Schedule = Schemas['Schedule'];
export type Rule = Schemas['Rule'];
export type NewRule = Schemas['NewRule'];
export type BoundPolicy = Schemas['BoundPolicy'];
export type Simulation = Schemas['Simulation'];
export type PolicyBacktest = Schemas['PolicyBacktest'];
export type WorkflowLine = Schemas['WorkflowLine'];
export type Workflow = Schemas['Workflow'];
export type WorkflowDiff = Schemas['WorkflowDiff'];

export type Stats = Answer<'getStats'>;
export type Upcoming = Answer<'getUpcoming'>;
export type Worker = Answer<'listWorkers'>['items'][number];
export type Instance = Answer<'listInstances'>['items'][number];
export type StuckTask = Answer<'listStuckTasks'>['items'][number];
export type Repaired = Answer<'repairFailedTasks'>;
export type PausePreview = Answer<'previewPause'>;
export type Me = Answer<'getMe'>;
export type Versions = Answer<'listWorkflowVersions'>;

export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}
