/** All jobs, newest first. Every row is live. */

import type { Signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { errorMessage } from "../api/api-error";
import { api } from "../api/client";
import type { JobPage, JobState, JobSummary } from "../api/types";
import { EmptyState, ErrorMessage, Loading } from "../components/feedback";
import { JobDot, ProgressBar, progressLabel, Sparkline, StateBadge, WorkerCount } from "../components/job-cells";
import { formatDuration, formatNumber, MISSING, pluralize } from "../lib/format";
import { markReady } from "../lib/ready-mark";
import { jobHref } from "../lib/route";
import { clock, jobs, overview } from "../state/server-state";
import { useLoad } from "../state/use-load";

const PAGE_SIZE = 50;
const FILTERS = ["all", "running", "queued", "paused", "finished", "failed"] as const;
type Filter = (typeof FILTERS)[number];

interface OlderPages {
  /** The first page that these follow: they are dropped when it is loaded again. */
  after: JobPage | null;
  ids: string[];
  next: string | null;
}

export function JobsView() {
  const [filter, setFilter] = useState<Filter>("all");
  const [name, setName] = useState("");
  const query = { state: filter === "all" ? null : filter, name: name.trim() || null, limit: PAGE_SIZE };
  const firstPage = useLoad(`jobs ${filter} ${query.name}`, async (signal) => {
    const page = await api.get<JobPage>("/v1/jobs", query, signal);
    jobs.update(page.items);
    return page;
  });
  const [older, setOlder] = useState<OlderPages>({ after: null, ids: [], next: null });
  const [error, setError] = useState<string | null>(null);
  const page = firstPage.value;
  const olderIds = older.after === page ? older.ids : [];
  const next = older.after === page ? older.next : (page?.next ?? null);
  useEffect(() => {
    if (page) markReady();
  }, [page]);

  const loadOlder = async () => {
    try {
      const olderPage = await api.get<JobPage>("/v1/jobs", { ...query, cursor: next });
      jobs.update(olderPage.items);
      setOlder({ after: page, ids: [...olderIds, ...olderPage.items.map((item) => item.id)], next: olderPage.next });
      setError(null);
    } catch (reason) {
      setError(errorMessage(reason));
    }
  };
  const matches = (job: JobSummary) => (filter === "all" || job.state === filter) && job.name.includes(name.trim());
  const rows = page ? listRows(page, olderIds, matches) : [];
  return (
    <>
      <div class="row title-row">
        <h1>Jobs</h1>
        <div class="segments" role="group" aria-label="state">
          {FILTERS.map((label) => (
            <button type="button" key={label} aria-pressed={filter === label} onClick={() => setFilter(label)}>
              {label}
              {countJobs(label)}
            </button>
          ))}
        </div>
        <input
          type="search"
          placeholder="name"
          aria-label="filter by name"
          value={name}
          onInput={(event) => setName(event.currentTarget.value.toLowerCase())}
        />
      </div>
      {firstPage.error && <ErrorMessage error={firstPage.error} onRetry={firstPage.reload} />}
      {!page && !firstPage.error && <Loading what="jobs" />}
      {page && rows.length === 0 && <NoJobs filtered={filter !== "all" || name.trim() !== ""} />}
      {rows.length > 0 && <JobTable rows={rows} matches={matches} />}
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      {next !== null && (
        <button type="button" class="load-older" onClick={() => void loadOlder()}>
          Load older jobs
        </button>
      )}
    </>
  );
}

function countJobs(filter: Filter): string {
  const counts: Partial<Record<JobState, number>> = overview.value?.jobs ?? {};
  const count = filter === "all" ? Object.values(counts).reduce((a, b) => a + b, 0) : (counts[filter] ?? 0);
  return count > 0 ? ` ${count}` : "";
}

/** The loaded jobs, preceded by those that the stream has added since. */
function listRows(page: JobPage, olderIds: string[], matches: (job: JobSummary) => boolean): Signal<JobSummary>[] {
  void jobs.membership.value; // Lists again when a job is added or removed.
  const ids = [...page.items.map((item) => item.id), ...olderIds];
  const loaded = new Set(ids);
  const newest = page.items[0]?.submitted_at ?? 0;
  const added = [...jobs.all()].filter((row) => {
    const job = row.peek();
    return !loaded.has(job.id) && job.submitted_at >= newest && matches(job);
  });
  added.sort((a, b) => b.peek().submitted_at - a.peek().submitted_at);
  return [...added, ...ids.map((id) => jobs.get(id)).filter((row) => row !== undefined)];
}

function NoJobs({ filtered }: { filtered: boolean }) {
  if (filtered) return <EmptyState title="No matching jobs">Try another state or a shorter name.</EmptyState>;
  return (
    <EmptyState title="No jobs yet">
      <p>
        <a href="#/submit">Submit one here</a>, or from a terminal:
      </p>
      <pre>stretto submit --workers 1:4 -- python train.py</pre>
    </EmptyState>
  );
}

function JobTable({ rows, matches }: { rows: Signal<JobSummary>[]; matches: (job: JobSummary) => boolean }) {
  return (
    <div class="card table-box">
      <table class="jobs">
        <caption class="visually-hidden">{pluralize(rows.length, "job")}, newest first</caption>
        <thead>
          <tr>
            <th scope="col">Job</th>
            <th scope="col">State</th>
            <th scope="col">Workers</th>
            <th scope="col">Progress</th>
            <th scope="col" class="number">
              ETA
            </th>
            <th scope="col" class="number" title="useful samples per second: throughput × statistical efficiency">
              Goodput
            </th>
            <th scope="col">Loss</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <JobRow key={row.peek().id} row={row} matches={matches} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function JobRow({ row, matches }: { row: Signal<JobSummary>; matches: (job: JobSummary) => boolean }) {
  const job = row.value;
  if (!matches(job)) return null;
  const { progress } = job;
  const reason = job.error ?? (job.note || job.reason);
  const throughput = formatThroughput(job);
  return (
    <tr data-job={job.id}>
      <th scope="row">
        <a href={jobHref(job.id)} class="job-link">
          <JobDot job={job.id} /> {job.name}
        </a>
        <span class="reason" title={reason}>
          {reason}
        </span>
      </th>
      <td data-label="State">
        <StateBadge state={job.state} />
      </td>
      <td data-label="Workers">
        <WorkerCount job={job} />
      </td>
      <td data-label="Progress" class={progress.fraction || progress.step > 0 ? "" : "is-missing"} title={progressLabel(job)}>
        <ProgressBar fraction={job.state === "finished" ? 1 : progress.fraction} label={progressLabel(job)} />
      </td>
      <td data-label="ETA" class={`number ${job.eta === null && job.ended_at === null ? "is-missing" : ""}`}>
        <Eta job={job} />
      </td>
      <td data-label="Goodput" class={`number ${throughput === MISSING ? "is-missing" : ""}`}>
        {/* Without a noise scale there is no goodput: the throughput stands in for it. */}
        <span class={progress.goodput === null ? "muted" : ""}>{throughput}</span>
      </td>
      <td data-label="Loss" class={`loss ${progress.loss === null ? "is-missing" : ""}`}>
        {job.spark.length > 1 && <Sparkline values={job.spark} label={`loss, last ${formatNumber(progress.loss)}`} />}{" "}
        <span>{formatNumber(progress.loss)}</span>
      </td>
    </tr>
  );
}

function Eta({ job }: { job: JobSummary }) {
  if (job.ended_at === null) return <>{job.eta === null ? MISSING : formatDuration(job.eta - clock.value)}</>;
  return <span class="muted">{job.started_at === null ? MISSING : `took ${formatDuration(job.ended_at - job.started_at)}`}</span>;
}

function formatThroughput(job: JobSummary): string {
  const perSecond = job.progress.goodput ?? job.progress.samples_per_s;
  return job.ended_at !== null || perSecond === null ? MISSING : `${formatNumber(perSecond)}/s`;
}
