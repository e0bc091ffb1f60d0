/** All jobs, newest first, each line live. */

import { useEffect, useState } from "preact/hooks";
import type { Signal } from "@preact/signals";
import { api, sentence } from "../api/client";
import type { JobPage, JobState, JobSummary } from "../api/types";
import { duration, figure, NONE, plural } from "../lib/format";
import { ready } from "../lib/ready";
import { jobLink } from "../lib/route";
import { Dot, Empty, Loading, Meter, progressLabel, Spark, State, Trouble, Workers } from "../parts/small";
import { allLines, arrivals, clock, isRemoved, learn, line, overview } from "../state/live";
import { useLoad } from "../state/load";

const PAGE = 50;
const FILTERS: readonly (readonly [string, readonly JobState[]])[] = [
  ["all", []],
  ["running", ["running"]],
  ["queued", ["queued"]],
  ["paused", ["paused"]],
  ["finished", ["finished"]],
  ["failed", ["failed"]],
];

export function JobsView() {
  const [filter, setFilter] = useState(0);
  const [name, setName] = useState("");
  const states = FILTERS[filter]![1];
  const query = { state: states[0], name: name.trim() || null, limit: PAGE };
  const first = useLoad(`jobs ${filter} ${query.name}`, async (signal) => {
    const page = await api.get<JobPage>("/v1/jobs", query, signal);
    learn(page.items);
    return page;
  });
  const [more, setMore] = useState<{ from: JobPage | null; ids: string[]; next: string | null }>({ from: null, ids: [], next: null });
  const [error, setError] = useState<string | null>(null);
  const mine = more.from === first.value;
  const next = mine ? more.next : first.value?.next ?? null;
  useEffect(() => void (first.value && ready()), [first.value]);

  const loadMore = async () => {
    try {
      const page = await api.get<JobPage>("/v1/jobs", { ...query, cursor: next });
      learn(page.items);
      setMore({ from: first.value, ids: [...(mine ? more.ids : []), ...page.items.map((item) => item.id)], next: page.next });
      setError(null);
    } catch (reason) {
      setError(sentence(reason));
    }
  };
  const fits = (job: JobSummary) => (states.length === 0 || states.includes(job.state)) && job.name.includes(name.trim());
  const shown = first.value ? listed([...first.value.items.map((item) => item.id), ...(mine ? more.ids : [])], first.value, fits) : [];
  return (
    <>
      <div class="row head">
        <h1>Jobs</h1>
        <div class="segments" role="group" aria-label="state">
          {FILTERS.map(([label], at) => (
            <button type="button" key={label} aria-pressed={filter === at} onClick={() => setFilter(at)}>
              {label}
              {count(FILTERS[at]![1])}
            </button>
          ))}
        </div>
        <input type="search" placeholder="name" aria-label="filter by name" value={name} onInput={(event) => setName(event.currentTarget.value.toLowerCase())} />
      </div>
      {first.error && <Trouble error={first.error} again={first.again} />}
      {!first.value && !first.error && <Loading what="jobs" />}
      {first.value && shown.length === 0 && <NoJobs filtered={filter > 0 || name.trim() !== ""} />}
      {shown.length > 0 && <Table lines={shown} fits={fits} />}
      {error && <p class="error" role="alert">{error}</p>}
      {next !== null && (
        <button type="button" class="more" onClick={() => void loadMore()}>
          Older jobs
        </button>
      )}
    </>
  );
}

function count(states: readonly JobState[]): string {
  const jobs = overview.value?.jobs;
  if (!jobs) return "";
  const sum = states.length === 0 ? Object.values(jobs).reduce((a, b) => a + b, 0) : states.reduce((a, state) => a + (jobs[state] ?? 0), 0);
  return sum > 0 ? ` ${sum}` : "";
}

/** The loaded lines, and before them those that the stream has brought since. */
function listed(ids: string[], page: JobPage, fits: (job: JobSummary) => boolean): Signal<JobSummary>[] {
  void arrivals.value;
  const newest = page.items[0]?.submitted_at ?? 0;
  const known = new Set(ids);
  const fresh: Signal<JobSummary>[] = [];
  for (const one of allLines()) {
    const job = one.peek();
    if (!known.has(job.id) && job.submitted_at >= newest && fits(job)) fresh.push(one);
  }
  fresh.sort((a, b) => b.peek().submitted_at - a.peek().submitted_at);
  return [...fresh, ...ids.filter((id) => !isRemoved(id)).map((id) => line(id)).filter((one) => one !== undefined)];
}

function NoJobs({ filtered }: { filtered: boolean }) {
  if (filtered) {
    return <Empty title="No job fits">Another state or a shorter name may.</Empty>;
  }
  return (
    <Empty title="No jobs yet">
      <p>
        <a href="#/submit">Submit one here</a>, or from a terminal:
      </p>
      <pre>stretto submit --workers 1:4 -- python train.py</pre>
    </Empty>
  );
}

function Table({ lines, fits }: { lines: Signal<JobSummary>[]; fits: (job: JobSummary) => boolean }) {
  return (
    <div class="card table-box">
      <table class="jobs">
        <caption class="hidden">{plural(lines.length, "job")}, newest first</caption>
        <thead>
          <tr>
            <th scope="col">Job</th>
            <th scope="col">State</th>
            <th scope="col">Workers</th>
            <th scope="col">Progress</th>
            <th scope="col" class="number">
              ETA
            </th>
            <th scope="col" class="number" title="useful samples a second: throughput times statistical efficiency">
              Goodput
            </th>
            <th scope="col">Loss</th>
          </tr>
        </thead>
        <tbody>
          {lines.map((one) => (
            <Row key={one.peek().id} line={one} fits={fits} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ line: source, fits }: { line: Signal<JobSummary>; fits: (job: JobSummary) => boolean }) {
  const job = source.value;
  if (!fits(job)) return null;
  const { progress } = job;
  return (
    <tr data-job={job.id}>
      <th scope="row">
        <a href={jobLink(job.id)} class="job-link">
          <Dot job={job.id} /> {job.name}
        </a>
        <span class="reason" title={job.error ?? (job.note || job.reason)}>
          {job.error ?? (job.note || job.reason)}
        </span>
      </th>
      <td data-label="State">
        <State state={job.state} />
      </td>
      <td data-label="Workers">
        <Workers line={job} />
      </td>
      <td data-label="Progress" class={progress.fraction || progress.step > 0 ? "" : "is-none"} title={progressLabel(job)}>
        <Meter fraction={job.state === "finished" ? 1 : progress.fraction} label={progressLabel(job)} />
      </td>
      <td data-label="ETA" class={`number ${job.eta === null && job.ended_at === null ? "is-none" : ""}`}>
        <Eta job={job} />
      </td>
      <td data-label="Goodput" class={`number ${goodput(job) === NONE ? "is-none" : ""}`}>
        {goodput(job)}
      </td>
      <td data-label="Loss" class={`loss ${progress.loss === null ? "is-none" : ""}`}>
        {job.spark.length > 1 && <Spark values={job.spark} label={`loss, last ${figure(progress.loss)}`} />} <span>{figure(progress.loss)}</span>
      </td>
    </tr>
  );
}

function Eta({ job }: { job: JobSummary }) {
  if (job.ended_at !== null) return <span class="muted">{job.started_at === null ? NONE : `took ${duration(job.ended_at - job.started_at)}`}</span>;
  return <>{job.eta === null ? NONE : duration(job.eta - clock.value)}</>;
}

/** Jobs that measure no noise scale have a throughput all the same. */
function goodput(job: JobSummary) {
  if (job.ended_at !== null) return NONE;
  if (job.progress.goodput !== null) return `${figure(job.progress.goodput)}/s`;
  return job.progress.samples_per_s === null ? NONE : <span class="muted">{`${figure(job.progress.samples_per_s)}/s`}</span>;
}
