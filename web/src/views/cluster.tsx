/** The cluster: slots over time, who has what and why, who waits, what was decided. */

import { useEffect, useState } from "preact/hooks";
import { api, sentence } from "../api/client";
import type { Allocation, DecisionPage, History, JobPage, Node, Nodes, Overview } from "../api/types";
import { ago, moment, plural } from "../lib/format";
import { jobLink } from "../lib/route";
import { ready } from "../lib/ready";
import { Events } from "../parts/events";
import { Dot, Empty, Loading, Trouble } from "../parts/small";
import { Timeline } from "../parts/timeline";
import { allocation, clock, events, learn, may, now, overview } from "../state/live";
import { useLoad, useThrottled } from "../state/load";

const WINDOWS = [
  [300, "5 min"],
  [1800, "30 min"],
  [7200, "2 h"],
  [43200, "12 h"],
  [172800, "2 d"],
] as const;
const REFRESH_MS = 1_000;

export function ClusterView() {
  const [chosen, setWindow] = useState<number | null>(null);
  const [fitting, setFitting] = useState(1800);
  const windowS = chosen ?? fitting;
  const history = useLoad(`history ${Math.max(1800, windowS)}`, (signal) => api.get<History>("/v1/allocations/history", { since: now() - Math.max(1800, windowS) }, signal));
  const nodes = useLoad("nodes", (signal) => api.get<Nodes>("/v1/nodes", {}, signal));
  const waiting = useLoad("waiting", (signal) => api.get<JobPage>("/v1/jobs", { state: "queued", limit: 20 }, signal));
  const decisions = useLoad("decisions", (signal) => api.get<DecisionPage>("/v1/decisions", { limit: 30 }, signal));
  const refresh = useThrottled(() => {
    for (const one of [history, nodes, waiting, decisions]) one.again();
  }, REFRESH_MS);
  const last = events.value.at(-1)?.id;
  const shares = allocation.value;
  useEffect(refresh, [last, shares]);
  useEffect(() => learn(waiting.value?.items ?? []), [waiting.value]);
  useEffect(() => {
    // Until somebody chooses: the shortest window that has everything of the last half hour.
    const oldest = Math.min(now(), ...(history.value?.items ?? []).map((bar) => bar.start));
    if (chosen === null && history.value) setFitting(now() - oldest < 290 ? 300 : 1800);
  }, [history.value, chosen]);
  useEffect(() => void (history.value && nodes.value && ready()), [history.value, nodes.value]);

  const trouble = history.error ?? nodes.error;
  return (
    <>
      <h1 class="hidden">Cluster</h1>
      {overview.value && <Facts head={overview.value} />}
      <section class="card" aria-labelledby="slots-title">
        <div class="row head">
          <h2 id="slots-title">Slots over time</h2>
          <span class="grow" />
          <div class="segments" role="group" aria-label="how far back">
            {WINDOWS.map(([seconds, label]) => (
              <button type="button" key={label} aria-pressed={windowS === seconds} onClick={() => setWindow(seconds)}>
                {label}
              </button>
            ))}
          </div>
        </div>
        {trouble && !history.value ? (
          <Trouble error={trouble} again={refresh} />
        ) : history.value && nodes.value ? (
          <Timeline history={history.value} nodes={nodes.value.items} windowS={windowS} />
        ) : (
          <Loading what="the slots" />
        )}
        {history.value?.items.length === 0 && <Idle />}
        {history.value && <Legend history={history.value} />}
      </section>
      <div class="columns">
        <div>
          <Shares shares={shares} />
          <NodesCard nodes={nodes.value} again={refresh} />
          <section class="card" aria-labelledby="events-title">
            <h2 id="events-title">Happening now</h2>
            {events.value.length > 0 ? <Events items={events.value} named most={12} /> : <p class="muted">Quiet since this page was opened.</p>}
          </section>
        </div>
        <div>
          <Waiting page={waiting.value} />
          <Decisions page={decisions.value} />
        </div>
      </div>
    </>
  );
}

function Facts({ head }: { head: Overview }) {
  const count = (...states: (keyof Overview["jobs"])[]) => states.reduce((sum, state) => sum + (head.jobs[state] ?? 0), 0);
  const ended = count("finished", "cancelled");
  return (
    <ul class="tiles" aria-label="at a glance">
      <Tile value={`${head.used}/${head.slots}`} label="slots in use" />
      <Tile value={count("running", "starting")} label="running" tone="running" />
      <Tile value={count("queued")} label="waiting" tone="queued" />
      <Tile value={count("paused", "pausing")} label="paused" />
      <Tile value={ended} label="ended" />
      <Tile value={count("failed")} label="failed" tone={count("failed") > 0 ? "failed" : ""} />
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

function Idle() {
  return (
    <Empty title="All slots were free in this time">
      <p>
        Give them something to do: <a href="#/submit">submit a job</a>, or <code>stretto submit --workers 1:4 -- python train.py</code>
      </p>
    </Empty>
  );
}

function Legend({ history }: { history: History }) {
  const named = new Map<string, string>();
  for (const bar of history.items) named.set(bar.job, bar.name);
  if (named.size === 0) return null;
  return (
    <ul class="legend" aria-label="jobs in the picture">
      {[...named].slice(-40).map(([job, name]) => (
        <li key={job}>
          {job === "other" ? (
            <span>
              <Dot job={job} /> other tenants
            </span>
          ) : (
            <a href={jobLink(job)}>
              <Dot job={job} /> {name}
            </a>
          )}
        </li>
      ))}
    </ul>
  );
}

function Shares({ shares }: { shares: Allocation | null }) {
  return (
    <section class="card" aria-labelledby="shares-title">
      <h2 id="shares-title">Who has what</h2>
      {shares === null ? (
        <Loading what="the allocation" />
      ) : shares.items.length === 0 ? (
        <Empty title={`${plural(shares.free, "slot")} free, nobody has any`} />
      ) : (
        <ul class="shares">
          {shares.items.map((share) => (
            <li key={share.job}>
              <Dot job={share.job} />
              {share.job === "other" ? <b>other tenants</b> : <a href={jobLink(share.job)}>{share.name}</a>}
              <b>{plural(share.workers, "worker")}</b>
              <span class="muted">{share.reason}</span>
            </li>
          ))}
          {shares.free > 0 && (
            <li class="muted">
              <i class="dot is-free" /> {plural(shares.free, "slot")} free
            </li>
          )}
        </ul>
      )}
    </section>
  );
}

function Waiting({ page }: { page: JobPage | null }) {
  return (
    <section class="card" aria-labelledby="waiting-title">
      <h2 id="waiting-title">Who waits</h2>
      {page === null ? (
        <Loading what="the queue" />
      ) : page.items.length === 0 ? (
        <Empty title="Nobody waits" />
      ) : (
        <ul class="shares">
          {page.items.map((job) => (
            <li key={job.id}>
              <Dot job={job.id} />
              <a href={jobLink(job.id)}>{job.name}</a>
              <b>{ago(job.submitted_at, clock.value)}</b>
              <span class="muted">{job.reason}</span>
            </li>
          ))}
          {page.total > page.items.length && (
            <li>
              <a href="#/jobs">and {plural(page.total - page.items.length, "other")}</a>
            </li>
          )}
        </ul>
      )}
    </section>
  );
}

function NodesCard({ nodes, again }: { nodes: Nodes | null; again: () => void }) {
  const [error, setError] = useState<string | null>(null);
  const cordon = (node: Node) =>
    api
      .patch<Node>(`/v1/nodes/${encodeURIComponent(node.name)}`, { cordoned: !node.cordoned })
      .then(() => setError(null), (reason) => setError(sentence(reason)))
      .then(again);
  if (nodes === null) return <section class="card" />;
  return (
    <section class="card" aria-labelledby="nodes-title">
      <h2 id="nodes-title">Nodes</h2>
      {error && <p class="error" role="alert">{error}</p>}
      {nodes.items.length === 0 && <Empty title="No nodes: the cluster has not answered yet" />}
      <ul class="shares">
        {nodes.items.map((node) => (
          <li key={node.name}>
            <i class={`dot ${node.alive ? (node.cordoned ? "is-cordoned" : "is-alive") : "is-dead"}`} />
            <b>{node.name}</b>
            <span>
              {node.used} of {plural(node.slots, "slot")}
            </span>
            <span class="muted">
              {node.type}
              {!node.alive && ", dead"}
              {node.cordoned && ", gets no new workers"}
              {node.price > 0 && `, ${node.price} a slot and hour`}
            </span>
            {may("admin") && (
              <button type="button" class="quiet" onClick={() => void cordon(node)} title={node.cordoned ? "Let it have workers again" : "No new workers, and those it has leave in order"}>
                {node.cordoned ? "Uncordon" : "Cordon"}
              </button>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Decisions({ page }: { page: DecisionPage | null }) {
  const shown = (page?.items ?? []).filter((decision) => decision.changes.length > 0 || decision.alarm !== null || decision.kept).slice(0, 6);
  return (
    <section class="card" aria-labelledby="decisions-title">
      <h2 id="decisions-title">Decisions</h2>
      {shown.length === 0 && <Empty title="Nothing had to be changed lately" />}
      <ol class="decisions">
        {shown.map((decision) => (
          <li key={decision.id}>
            <time>{moment(decision.t, clock.peek())}</time>
            <span class="muted">
              {decision.policy}, {decision.trigger}
            </span>
            {decision.alarm && <p class="error">{decision.alarm}</p>}
            <ul>
              {decision.changes.slice(0, 6).map((change) => (
                <li key={change.job}>
                  <Dot job={change.job} /> {change.name} {change.before} → {change.after} <span class="muted">{change.reason}</span>
                </li>
              ))}
            </ul>
          </li>
        ))}
      </ol>
    </section>
  );
}

