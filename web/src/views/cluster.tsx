/** The cluster: slots over time, the allocation and its reasons, the queue, nodes, decisions and events. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { errorMessage } from "../api/api-error";
import { api } from "../api/client";
import type { ClusterAllocation, DecisionPage, History, JobPage, Node, Nodes, Overview, PolicyDecision } from "../api/types";
import { EventList } from "../components/event-list";
import { EmptyState, ErrorMessage, Loading } from "../components/feedback";
import { JobDot } from "../components/job-cells";
import { SlotTimeline } from "../components/slot-timeline";
import { formatAge, formatTime, pluralize } from "../lib/format";
import { markReady } from "../lib/ready-mark";
import { jobHref } from "../lib/route";
import { allocation, clock, events, hasScope, jobs, overview, serverNow } from "../state/server-state";
import { type Loaded, useLoad, useThrottled } from "../state/use-load";

const WINDOWS = [
  [300, "5 min"],
  [1800, "30 min"],
  [7200, "2 h"],
  [43_200, "12 h"],
  [172_800, "2 d"],
] as const;
/** The history is loaded for at least this long: shorter windows show a part of it. */
const MIN_HISTORY_S = 1800;
const REFRESH_MS = 1000;
const MAX_QUEUE = 20;
const MAX_LEGEND = 40;
const MAX_EVENTS = 12;
const MAX_DECISIONS = 6;
const MAX_CHANGES = 6;

export function ClusterView() {
  const [chosenWindowS, setChosenWindow] = useState<number | null>(null);
  const [fittingWindowS, setFittingWindow] = useState(MIN_HISTORY_S);
  const windowS = chosenWindowS ?? fittingWindowS;
  const historyS = Math.max(MIN_HISTORY_S, windowS);
  const history = useLoad(`history ${historyS}`, (signal) =>
    api.get<History>("/v1/allocations/history", { since: serverNow() - historyS }, signal),
  );
  const nodes = useLoad("nodes", (signal) => api.get<Nodes>("/v1/nodes", {}, signal));
  const queue = useLoad("queue", (signal) => api.get<JobPage>("/v1/jobs", { state: "queued", limit: MAX_QUEUE }, signal));
  const decisions = useLoad("decisions", (signal) => api.get<DecisionPage>("/v1/decisions", { limit: 30 }, signal));
  const refresh = useThrottled(() => {
    for (const resource of [history, nodes, queue, decisions]) resource.reload();
  }, REFRESH_MS);
  useEffect(refresh, [refresh, events.value.at(-1)?.id, allocation.value]);
  useEffect(() => jobs.update(queue.value?.items ?? []), [queue.value]);
  useEffect(() => {
    if (history.value) setFittingWindow(fitWindow(history.value, serverNow()));
  }, [history.value]);
  useEffect(() => {
    if (history.value && nodes.value) markReady();
  }, [history.value, nodes.value]);
  return (
    <>
      <h1 class="visually-hidden">Cluster</h1>
      {overview.value && <Tiles overview={overview.value} />}
      <TimelineCard history={history} nodes={nodes} windowS={windowS} setWindow={setChosenWindow} onRetry={refresh} />
      <div class="columns">
        <div>
          <AllocationCard current={allocation.value} />
          <NodesCard nodes={nodes.value} onChange={refresh} />
          <Card id="events" title="Latest events">
            {events.value.length > 0 ? (
              <EventList events={events.value} limit={MAX_EVENTS} withJobs />
            ) : (
              <p class="muted">No events since this page was opened.</p>
            )}
          </Card>
        </div>
        <div>
          <QueueCard page={queue.value} />
          <DecisionsCard page={decisions.value} />
        </div>
      </div>
    </>
  );
}

/** The window that is shown until the user chooses one: five minutes if nothing is older. */
function fitWindow(history: History, now: number): number {
  const oldest = Math.min(now, ...history.items.map((bar) => bar.start));
  return now - oldest < 290 ? 300 : MIN_HISTORY_S;
}

function Card({ id, title, children }: { id: string; title: string; children: ComponentChildren }) {
  return (
    <section class="card" aria-labelledby={`${id}-title`}>
      <h2 id={`${id}-title`}>{title}</h2>
      {children}
    </section>
  );
}

function Tiles({ overview: { jobs: counts, used, slots } }: { overview: Overview }) {
  const count = (...states: (keyof Overview["jobs"])[]) => states.reduce((sum, state) => sum + (counts[state] ?? 0), 0);
  const failed = count("failed");
  return (
    <ul class="tiles" aria-label="overview">
      <Tile value={`${used}/${slots}`} label="slots in use" />
      <Tile value={count("running", "starting")} label="running" tone="running" />
      <Tile value={count("queued")} label="queued" tone="queued" />
      <Tile value={count("paused", "pausing")} label="paused" />
      <Tile value={count("finished", "cancelled")} label="finished or cancelled" />
      <Tile value={failed} label="failed" tone={failed > 0 ? "failed" : ""} />
    </ul>
  );
}

function Tile({ value, label, tone = "" }: { value: string | number; label: string; tone?: string }) {
  return (
    <li class={`tile ${tone && `tone-${tone}`}`}>
      <b>{value}</b>
      <span>{label}</span>
    </li>
  );
}

interface TimelineCardProps {
  history: Loaded<History>;
  nodes: Loaded<Nodes>;
  windowS: number;
  setWindow: (seconds: number) => void;
  onRetry: () => void;
}

function TimelineCard({ history, nodes, windowS, setWindow, onRetry }: TimelineCardProps) {
  const error = history.error ?? nodes.error;
  const loaded = history.value && nodes.value ? { history: history.value, nodes: nodes.value.items } : null;
  return (
    <section class="card" aria-labelledby="slots-title">
      <div class="row title-row">
        <h2 id="slots-title">Slots over time</h2>
        <span class="spacer" />
        <div class="segments" role="group" aria-label="time window">
          {WINDOWS.map(([seconds, label]) => (
            <button type="button" key={label} aria-pressed={windowS === seconds} onClick={() => setWindow(seconds)}>
              {label}
            </button>
          ))}
        </div>
      </div>
      {loaded && <SlotTimeline {...loaded} windowS={windowS} />}
      {!loaded && error && <ErrorMessage error={error} onRetry={onRetry} />}
      {!loaded && !error && <Loading what="the slots" />}
      {history.value?.items.length === 0 && <NothingRan />}
      {history.value && <Legend history={history.value} />}
    </section>
  );
}

function NothingRan() {
  return (
    <EmptyState title="No job ran in this time">
      <p>
        <a href="#/submit">Submit a job</a>, or run <code>stretto submit --workers 1:4 -- python train.py</code>
      </p>
    </EmptyState>
  );
}

/** The job's name as a link. The jobs of other tenants are counted together and have no page. */
function JobName({ job, name }: { job: string; name: string }) {
  return job === "other" ? <b>other tenants</b> : <a href={jobHref(job)}>{name}</a>;
}

function Legend({ history }: { history: History }) {
  const names = new Map(history.items.map((bar) => [bar.job, bar.name]));
  if (names.size === 0) return null;
  return (
    <ul class="legend" aria-label="jobs in the timeline">
      {[...names].slice(-MAX_LEGEND).map(([job, name]) => (
        <li key={job}>
          <JobDot job={job} /> <JobName job={job} name={name} />
        </li>
      ))}
    </ul>
  );
}

function AllocationCard({ current }: { current: ClusterAllocation | null }) {
  return (
    <Card id="allocation" title="Allocation">
      {current === null && <Loading what="the allocation" />}
      {current?.items.length === 0 && <EmptyState title={`No job has slots: ${pluralize(current.free, "slot")} free`} />}
      {current !== null && current.items.length > 0 && (
        <ul class="item-list">
          {current.items.map((share) => (
            <li key={share.job}>
              <JobDot job={share.job} />
              <JobName job={share.job} name={share.name} />
              <b>{pluralize(share.workers, "worker")}</b>
              <span class="muted">{share.reason}</span>
            </li>
          ))}
          {current.free > 0 && (
            <li class="muted">
              <i class="dot is-free" /> {pluralize(current.free, "slot")} free
            </li>
          )}
        </ul>
      )}
    </Card>
  );
}

function QueueCard({ page }: { page: JobPage | null }) {
  return (
    <Card id="queue" title="Queue">
      {page === null && <Loading what="the queue" />}
      {page?.items.length === 0 && <EmptyState title="The queue is empty" />}
      {page !== null && page.items.length > 0 && (
        <ul class="item-list">
          {page.items.map((job) => (
            <li key={job.id}>
              <JobDot job={job.id} />
              <a href={jobHref(job.id)}>{job.name}</a>
              <b>submitted {formatAge(job.submitted_at, clock.value)}</b>
              <span class="muted">{job.reason}</span>
            </li>
          ))}
          {page.total > page.items.length && (
            <li>
              <a href="#/jobs">and {page.total - page.items.length} more</a>
            </li>
          )}
        </ul>
      )}
    </Card>
  );
}

function NodesCard({ nodes, onChange }: { nodes: Nodes | null; onChange: () => void }) {
  const [error, setError] = useState<string | null>(null);
  const toggleCordon = async (node: Node) => {
    try {
      await api.patch<Node>(`/v1/nodes/${encodeURIComponent(node.name)}`, { cordoned: !node.cordoned });
      setError(null);
    } catch (reason) {
      setError(errorMessage(reason));
    }
    onChange();
  };
  return (
    <Card id="nodes" title="Nodes">
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      {nodes === null && <Loading what="the nodes" />}
      {nodes?.items.length === 0 && <EmptyState title="No nodes: the cluster has not answered yet" />}
      <ul class="item-list">
        {nodes?.items.map((node) => (
          <NodeItem key={node.name} node={node} toggleCordon={() => void toggleCordon(node)} />
        ))}
      </ul>
    </Card>
  );
}

function NodeItem({ node, toggleCordon }: { node: Node; toggleCordon: () => void }) {
  const title = node.cordoned ? "Give it workers again" : "Give it no new workers, and drain the ones it has";
  return (
    <li>
      <i class={`dot ${node.cordoned ? "is-cordoned" : "is-schedulable"}`} />
      <b>{node.name}</b>
      <span>
        {node.used} of {pluralize(node.slots, "slot")}
      </span>
      <span class="muted">
        {node.type}
        {node.cordoned && ", cordoned"}
        {node.price > 0 && `, ${node.price} per slot-hour`}
      </span>
      {hasScope("admin") && (
        <button type="button" class="quiet" onClick={toggleCordon} title={title}>
          {node.cordoned ? "Uncordon" : "Cordon"}
        </button>
      )}
    </li>
  );
}

function DecisionsCard({ page }: { page: DecisionPage | null }) {
  const notable = (page?.items ?? []).filter(({ changes, alarm, kept }) => changes.length > 0 || alarm !== null || kept);
  return (
    <Card id="decisions" title="Decisions">
      {notable.length === 0 && <EmptyState title="No recent changes" />}
      <ol class="decisions">
        {notable.slice(0, MAX_DECISIONS).map((decision) => (
          <DecisionItem key={decision.id} decision={decision} />
        ))}
      </ol>
    </Card>
  );
}

function DecisionItem({ decision }: { decision: PolicyDecision }) {
  return (
    <li>
      <time>{formatTime(decision.t, clock.peek())}</time>
      <span class="muted">
        {decision.policy}, {decision.trigger}
      </span>
      {decision.alarm && <p class="error">{decision.alarm}</p>}
      <ul>
        {decision.changes.slice(0, MAX_CHANGES).map((change) => (
          <li key={change.job}>
            <JobDot job={change.job} /> {change.name} {change.before} → {change.after} <span class="muted">{change.reason}</span>
          </li>
        ))}
      </ul>
    </li>
  );
}
