// Written by web/shapes.py from the server's models: change those, then run it again.

export interface Alarm {
  name: string;
  text: string;
  since: number;
  count: number;
}

export interface Allocation {
  decision: number | null;
  t: number | null;
  policy: string;
  slots: number;
  free: number;
  items: Share[];
}

export interface Autoscale {
  /** grow while each added worker brings this much of what one without it brings */
  efficiency?: number | null;
}

export interface Bar {
  job: string;
  name: string;
  node: string;
  slots: number;
  start: number;
  end: number | null;
}

export interface Change {
  job: string;
  name: string;
  before: number;
  after: number;
  reason: string;
}

export interface Competitor {
  job: string;
  name: string;
  workers: number;
}

export interface Decision {
  id: number;
  t: number;
  trigger: string;
  policy: string;
  seconds: number;
  /** the policy failed, and the old allocation was kept */
  kept: boolean;
  alarm: string | null;
  changes: Change[];
}

export interface DecisionPage {
  items: Decision[];
  next: number | null;
}

export interface Elastic {
  min?: number;
  max?: number;
  /** bounds `max`; what the script says counts if this is absent */
  slices?: number | null;
  /** of a script with a plain batch_size: so much in all, so much a worker, or by measured goodput */
  batch?: "fixed" | "linear" | "adaptive";
  /** grow only as far as it pays, inside what the policy gives */
  autoscale?: Autoscale | null;
  /** a scripted scaling plan, for experiments */
  plan?: Stage[];
}

export interface Event {
  id: number;
  job: string | null;
  t: number;
  kind: string;
  /** a sentence for people */
  text: string;
  data: Record<string, unknown>;
}

export interface EventPage {
  items: Event[];
  /** give it as `after` to get what follows */
  next: number | null;
}

export interface Explanation {
  job: string;
  sentence: string;
  constraint: "none" | "maximum" | "minimum" | "slots" | "pinned" | "wish" | "plan" | "autoscale" | "refused" | "policy" | "guard" | "paused" | "starting" | "ended" | "quota" | "price" | "alarm" | "plain";
  competing: Competitor[];
  expected_start: number | null;
  expected_finish: number | null;
  would_change: string[];
  decision: number | null;
  t: number;
}

export interface History {
  since: number;
  until: number;
  slots: number;
  items: Bar[];
}

export interface Job {
  id: string;
  name: string;
  tenant: string;
  state: JobState;
  /** grows with every change; use it as If-Match */
  version: number;
  /** training now */
  workers: number;
  /** what the last decision gave it */
  wanted: number;
  min: number;
  max: number;
  wish: number | null;
  pinned: boolean;
  priority: number;
  /** workers on each node */
  nodes: Record<string, number>;
  submitted_at: number;
  started_at: number | null;
  ended_at: number | null;
  /** unix seconds of the expected end */
  eta: number | null;
  progress: Progress;
  /** the loss curve in at most 32 means, oldest first */
  spark: number[];
  resizes: number;
  restarts: number;
  /** all pauses of its changes together */
  pause_ms: number;
  /** why it has this size or waits, in a sentence */
  reason: string;
  /** what to know of it, in a sentence: that its command is no stretto script */
  note: string;
  error: string | null;
  /** with secrets masked */
  spec: JobSpec;
  /** SHA-256 of the final shared state */
  digest: string | null;
  samples_lost: number;
  worker_seconds: number;
  cost: number;
  /** the name of its run folder */
  run: string | null;
}

export interface JobChange {
  priority?: number | null;
  deadline?: number | null;
  price_limit?: number | null;
  plan?: Stage[] | null;
  /** `null` gives a wish or a pin back to the policy */
  wish?: null;
}

export interface JobPage {
  items: JobSummary[];
  /** give it as `cursor` to get the following page */
  next: string | null;
  total: number;
}

export interface JobSpec {
  /** small letters, digits and hyphens, at most 48 */
  name: string;
  /** an existing folder on the cluster; the server's own folder for the job if absent */
  workdir?: string | null;
  /** environment; values that look secret are masked */
  envs?: Record<string, string>;
  resources?: Resources;
  /** `[python, train.py, --lr, 0.1]`, or the same as a text; a text with more in it is run by the user's shell */
  run: string[] | string;
  /** run it as it is, as one process that stretto neither starts nor scales */
  plain?: boolean;
  elastic?: Elastic;
  /** higher goes first */
  priority?: number;
  /** unix seconds by which the job should have finished */
  deadline?: number | null;
  /** what the job may cost, in the units of the nodes' prices */
  price_limit?: number | null;
  /** may be set back to the queue when somebody more important needs its slots */
  preemptible?: boolean;
  /** how often lost processes are replaced (all, or some workers) before it has failed */
  restarts?: number;
  /** a job without a first step after this has failed */
  ready_timeout_s?: number;
  /** how many steps it will take, if known: helps to plan */
  steps?: number | null;
}

export type JobState = "queued" | "starting" | "running" | "pausing" | "paused" | "cancelling" | "finished" | "failed" | "cancelled";

export interface JobSummary {
  id: string;
  name: string;
  tenant: string;
  state: JobState;
  /** grows with every change; use it as If-Match */
  version: number;
  /** training now */
  workers: number;
  /** what the last decision gave it */
  wanted: number;
  min: number;
  max: number;
  wish: number | null;
  pinned: boolean;
  priority: number;
  /** workers on each node */
  nodes: Record<string, number>;
  submitted_at: number;
  started_at: number | null;
  ended_at: number | null;
  /** unix seconds of the expected end */
  eta: number | null;
  progress: Progress;
  /** the loss curve in at most 32 means, oldest first */
  spark: number[];
  resizes: number;
  restarts: number;
  /** all pauses of its changes together */
  pause_ms: number;
  /** why it has this size or waits, in a sentence */
  reason: string;
  /** what to know of it, in a sentence: that its command is no stretto script */
  note: string;
  error: string | null;
}

export interface LogPart {
  source: string;
  sources: string[];
  offset: number;
  /** give it as `offset` to go on */
  next: number;
  text: string;
  /** the job has ended and nothing follows */
  end: boolean;
  /** the log was longer than the bound: its middle is missing */
  cut: boolean;
}

export interface NewToken {
  id: string;
  name: string;
  scope: Scope;
  tenant: string;
  created_at: number;
  expires_at: number | null;
  revoked_at: number | null;
  used_at: number | null;
  /** shown once: only its hash is kept */
  secret: string;
}

export interface Node {
  name: string;
  type: string;
  slots: number;
  used: number;
  alive: boolean;
  /** gets no new workers, and loses those it has */
  cordoned: boolean;
  /** of one slot and hour */
  price: number;
  /** workers of each job; jobs of other tenants together as `other` */
  jobs: Record<string, number>;
}

export interface NodeChange {
  cordoned: boolean;
}

export interface Nodes {
  items: Node[];
  slots: number;
  used: number;
}

export interface Outcome {
  policy: string;
  average_s: number;
  median_s: number;
  p99_s: number;
  makespan_s: number;
  utilisation: number;
  /** completion seconds of each job */
  jobs: Record<string, number>;
}

export interface Overview {
  version: string;
  t: number;
  policy: string;
  cluster: string;
  slots: number;
  used: number;
  jobs: Record<string, number>;
  alarms: Alarm[];
  last_event: number;
  ready: boolean;
}

export interface Policies {
  items: Policy[];
  active: string;
  interval_s: number;
}

export interface Policy {
  name: string;
  text: string;
  active: boolean;
}

export interface PolicyChoice {
  name: string;
}

export interface Problem {
  status: number;
  title: string;
  detail: string;
  /** the places in a body that were wrong: `at`, `text` */
  errors: Record<string, unknown>[];
}

export interface Progress {
  step: number;
  steps: number | null;
  epoch: number | null;
  /** 0 to 1, if the length is known */
  fraction: number | null;
  loss: number | null;
  batch: number | null;
  steps_per_s: number | null;
  samples_per_s: number | null;
  /** useful samples a second: throughput times statistical efficiency */
  goodput: number | null;
  noise_scale: number | null;
  remaining_s: number | null;
}

export interface Resources {
  /** slots a worker: a slot is a place for one worker */
  slots?: number;
  /** only on nodes of this type */
  node_type?: string | null;
}

export interface ScaleWish {
  workers: number;
  /** exactly this many: the policy does not touch it any more */
  pin?: boolean;
}

export type Scope = "viewer" | "submitter" | "admin";

export interface Series {
  job: string;
  step: number[];
  t: number[];
  workers: number[];
  series: Record<string, (number | null)[]>;
  /** older points were thinned: the curve is complete, but coarser */
  thinned: boolean;
  /** give it as `after` to get the points that follow */
  next: number | null;
}

export interface Share {
  /** the id, or `other` for another tenant's job */
  job: string;
  name: string;
  workers: number;
  nodes: Record<string, number>;
  reason: string;
}

export interface Size {
  t: number;
  step: number;
  workers: number;
  cause: string;
  pause_ms: number | null;
}

export interface Sizes {
  job: string;
  items: Size[];
}

export interface Stage {
  step: number;
  workers: number;
}

export interface Token {
  id: string;
  name: string;
  scope: Scope;
  tenant: string;
  created_at: number;
  expires_at: number | null;
  revoked_at: number | null;
  used_at: number | null;
}

export interface TokenRequest {
  name: string;
  scope: Scope;
  tenant?: string;
  /** seconds from now; never if absent */
  expires_s?: number | null;
}

export interface Tokens {
  items: Token[];
}

export interface Trace {
  since: number;
  until: number;
  slots: number;
  nodes: Record<string, number>;
  items: TraceRow[];
}

export interface TraceRow {
  name: string;
  /** submission, seconds after the first */
  time: number;
  tenant: string;
  min_workers: number;
  max_workers: number;
  priority: number;
  state: JobState;
  duration_s: number | null;
  worker_seconds: number;
  batch: number | null;
  /** committed, or declared where more */
  steps: number;
  /** samples a second measured at each number of workers */
  throughput: Record<string, number>;
  /** the fitted throughput model that the job reported */
  model: Record<string, number>;
  /** in samples, as last reported */
  noise_scale: number | null;
}

export interface WhatIf {
  hours: number;
  jobs: number;
  baseline: Outcome;
  other: Outcome;
  /** average completion of `other` over `baseline`: below 1 is better */
  ratio: number;
  sentence: string;
}

export interface WhatIfRequest {
  policy: string;
  hours?: number;
  /** what to compare with; the active policy if absent */
  baseline?: string | null;
}
