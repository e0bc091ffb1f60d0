/** One job: its progress, why it has its size, and what can be done with it. */

import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import type { Explanation, JobDetails, JobSummary } from "../api/types";
import { EventList } from "../components/event-list";
import { EmptyState, ErrorMessage, Loading } from "../components/feedback";
import { JobDot, ProgressBar, progressLabel, StateBadge, WorkerCount } from "../components/job-cells";
import { JobControls } from "../components/job-controls";
import { LogViewer } from "../components/log-viewer";
import { MetricCharts } from "../components/metric-charts";
import { formatDuration, formatInteger, formatMilliseconds, formatNumber, formatTime, MISSING, pluralize } from "../lib/format";
import { isActive } from "../lib/job-state";
import { markReady } from "../lib/ready-mark";
import { jobHref } from "../lib/route";
import { useJob } from "../state/job-data";
import { clock, jobs } from "../state/server-state";

const MAX_EVENTS = 300;

export function JobView({ id }: { id: string }) {
  const { job, explanation, sizes, events } = useJob(id);
  useEffect(() => {
    if (job.value) markReady();
  }, [job.value]);
  if (jobs.isRemoved(id)) return <NotFound id={id} text="The job was removed." />;
  if (job.error && !job.value) {
    const missing = job.error.status === 404 || job.error.status === 422;
    return missing ? <NotFound id={id} text={job.error.message} /> : <ErrorMessage error={job.error} onRetry={job.reload} />;
  }
  if (!job.value) return <Loading what="the job" />;
  // The stream updates summaries more often than the whole job is loaded: their values are newer.
  const current: JobDetails = { ...job.value, ...jobs.get(id)?.value };
  return (
    <>
      <div class="row title-row job-title">
        <h1>
          <JobDot job={id} /> {current.name}
        </h1>
        <StateBadge state={current.state} />
        <code class="muted">{id}</code>
      </div>
      <JobControls job={current} onChange={job.reload} />
      {current.error && (
        <p class="notice is-alarm" role="alert">
          <b>{current.state}</b> {current.error}
        </p>
      )}
      <div class="columns wide-left">
        <Facts job={current} />
        <SizeExplanation job={current} explanation={explanation.value} />
      </div>
      <MetricCharts job={current} sizes={sizes.value} />
      <div class="columns">
        <section class="card" aria-labelledby="events-title">
          <h3 id="events-title">Events</h3>
          <div class="scroll" tabIndex={0} role="group" aria-label="events">
            <EventList events={events} limit={MAX_EVENTS} />
          </div>
        </section>
        <LogViewer job={id} active={isActive(current.state)} />
      </div>
      <details class="card">
        <summary>Job specification</summary>
        <pre>{JSON.stringify(current.spec, null, 2)}</pre>
      </details>
    </>
  );
}

function NotFound({ id, text }: { id: string; text: string }) {
  return (
    <EmptyState title="Job not found">
      <p>
        <code>{id}</code>: {text}
      </p>
      <p>
        <a href="#/jobs">All jobs</a>
      </p>
    </EmptyState>
  );
}

function Fact({ name, children, title }: { name: string; children: ComponentChildren; title?: string }) {
  return (
    <div class="fact" title={title}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function Facts({ job }: { job: JobDetails }) {
  const { progress } = job;
  const fraction = job.state === "finished" ? 1 : progress.fraction;
  return (
    <section class="card" aria-label="figures">
      {fraction !== null && <ProgressBar fraction={fraction} label={progressLabel(job)} />}
      <dl class="facts">
        <Fact name="workers">
          <WorkerCount job={job} />
        </Fact>
        <Fact name="step">
          {formatInteger(progress.step)}
          {progress.steps !== null && <span class="muted"> of {formatInteger(progress.steps)}</span>}
        </Fact>
        <Fact name="epoch">{formatInteger(progress.epoch)}</Fact>
        <Fact name="loss">{formatNumber(progress.loss, 4)}</Fact>
        <Fact name="samples/s">{formatNumber(progress.samples_per_s)}</Fact>
        <Fact name="goodput" title="useful samples per second: throughput × statistical efficiency">
          {formatNumber(progress.goodput)}
        </Fact>
        <Fact name={job.ended_at === null ? "running for" : "took"}>{elapsed(job)}</Fact>
        <Fact name="ETA">{remaining(job)}</Fact>
        <Fact name="resizes" title="number of resizes, and the sum of their pauses">
          {job.resizes} <span class="muted">{job.resizes > 0 && `${formatMilliseconds(job.pause_ms)} paused`}</span>
        </Fact>
        <Fact name="samples lost">{job.samples_lost}</Fact>
        {job.cost > 0 && <Fact name="cost">{formatNumber(job.cost)}</Fact>}
        {job.priority !== 0 && <Fact name="priority">{job.priority}</Fact>}
        {job.restarts > 0 && <Fact name="restarts">{job.restarts}</Fact>}
      </dl>
      {job.digest && (
        <p class="digest">
          <span class="muted">digest of the final state</span> <code>{job.digest}</code>
        </p>
      )}
    </section>
  );
}

function elapsed(job: JobDetails): string {
  return job.started_at === null ? MISSING : formatDuration((job.ended_at ?? clock.value) - job.started_at);
}

function remaining(job: JobDetails): string {
  if (job.eta === null || job.ended_at !== null) return MISSING;
  return `${formatDuration(job.eta - clock.value)}, ${formatTime(job.eta, clock.value)}`;
}

function SizeExplanation({ job, explanation }: { job: JobSummary; explanation: Explanation | null }) {
  const sentence = explanation?.sentence ?? job.reason;
  return (
    <section class="card explanation" aria-labelledby="explanation-title" data-testid="explanation">
      <h3 id="explanation-title">Why this size?</h3>
      <p class="sentence" aria-live="polite">
        {sentence}
      </p>
      {job.note && !sentence.includes(job.note) && (
        <p class="muted" data-testid="note">
          <TextWithCode text={job.note} />
        </p>
      )}
      {explanation && <ExplanationDetails explanation={explanation} />}
    </section>
  );
}

function ExplanationDetails({ explanation: { competing, would_change } }: { explanation: Explanation }) {
  return (
    <>
      {competing.length > 0 && (
        <p>
          <span class="muted">Other jobs: </span>
          {competing.map((other, at) => (
            <span key={other.job}>
              {at > 0 && ", "}
              {other.job === "other" ? other.name : <a href={jobHref(other.job)}>{other.name}</a>} (
              {pluralize(other.workers, "worker")})
            </span>
          ))}
        </p>
      )}
      {would_change.length > 0 && (
        <>
          <p class="muted">What would change it:</p>
          <ul>
            {would_change.map((text) => (
              <li key={text}>
                <TextWithCode text={text} />
              </li>
            ))}
          </ul>
        </>
      )}
    </>
  );
}

/** Shows what stands between `backticks` as code. */
function TextWithCode({ text }: { text: string }) {
  return <>{text.split("`").map((part, at) => (at % 2 === 1 ? <code key={at}>{part}</code> : part))}</>;
}
