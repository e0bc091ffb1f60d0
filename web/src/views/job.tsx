/** One job: how it goes, why it has its size, and what can be done about it. */

import { useEffect } from "preact/hooks";
import type { Explanation, Job, JobSummary } from "../api/types";
import { duration, figure, moment, NONE, pause, plural, whole } from "../lib/format";
import { ready } from "../lib/ready";
import { jobLink } from "../lib/route";
import { Controls } from "../parts/controls";
import { Curves } from "../parts/curves";
import { Events } from "../parts/events";
import { Logs } from "../parts/logs";
import { Dot, Empty, Fact, Loading, Meter, progressLabel, State, Trouble, Workers } from "../parts/small";
import { clock, isRemoved, line } from "../state/live";
import { useJob } from "../state/job";

const ACTIVE = new Set(["starting", "running", "pausing", "cancelling"]);

export function JobView({ id }: { id: string }) {
  const { job, explanation, sizes, events } = useJob(id);
  useEffect(() => void (job.value && ready()), [job.value]);
  if (isRemoved(id)) return <Gone id={id} text="It has been removed." />;
  if (job.error && !job.value) {
    const missing = job.error.status === 404 || job.error.status === 422;
    return missing ? <Gone id={id} text={job.error.message} /> : <Trouble error={job.error} again={job.again} />;
  }
  if (!job.value) return <Loading what="the job" />;
  // Lines come more often than whole jobs: what both have is taken from the line.
  const now: Job = { ...job.value, ...(line(id)?.value ?? {}) };
  return (
    <>
      <Title job={now} />
      <Controls job={now} changed={job.again} />
      {now.error && (
        <p class="notice is-alarm" role="alert">
          <b>{now.state}</b> {now.error}
        </p>
      )}
      <div class="columns wide-left">
        <Facts job={now} />
        <Why job={now} explanation={explanation.value} />
      </div>
      <Curves job={now} sizes={sizes.value} />
      <div class="columns">
        <section class="card" aria-labelledby="events-title">
          <h3 id="events-title">Events</h3>
          <div class="scroll" tabIndex={0} role="group" aria-label="events">
            <Events items={events} most={300} />
          </div>
        </section>
        <Logs job={id} active={ACTIVE.has(now.state)} />
      </div>
      <details class="card">
        <summary>What was asked for</summary>
        <pre>{JSON.stringify(now.spec, null, 2)}</pre>
      </details>
    </>
  );
}

function Gone({ id, text }: { id: string; text: string }) {
  return (
    <Empty title="There is no such job">
      <p>
        <code>{id}</code>: {text}
      </p>
      <p>
        <a href="#/jobs">All jobs</a>
      </p>
    </Empty>
  );
}

function Title({ job }: { job: Job }) {
  return (
    <div class="row head job-title">
      <h1>
        <Dot job={job.id} /> {job.name}
      </h1>
      <State state={job.state} />
      <code class="muted">{job.id}</code>
    </div>
  );
}

function Facts({ job }: { job: Job }) {
  const { progress } = job;
  const since = (job.ended_at ?? clock.value) - (job.started_at ?? job.submitted_at);
  return (
    <section class="card" aria-label="figures">
      {(progress.fraction !== null || job.state === "finished") && (
        <Meter fraction={job.state === "finished" ? 1 : progress.fraction} label={progressLabel(job)} />
      )}
      <dl class="facts">
        <Fact name="workers">
          <Workers line={job} />
        </Fact>
        <Fact name="step">
          {whole(progress.step)}
          {progress.steps !== null && <span class="muted"> of {whole(progress.steps)}</span>}
        </Fact>
        <Fact name="epoch">{whole(progress.epoch)}</Fact>
        <Fact name="loss">{figure(progress.loss, 4)}</Fact>
        <Fact name="samples/s">{figure(progress.samples_per_s)}</Fact>
        <Fact name="goodput" title="useful samples a second: throughput times statistical efficiency">
          {figure(progress.goodput)}
        </Fact>
        <Fact name={job.ended_at === null ? "running for" : "took"}>{job.started_at === null ? NONE : duration(since)}</Fact>
        <Fact name="ETA">{job.eta === null || job.ended_at !== null ? NONE : `${duration(job.eta - clock.value)}, ${moment(job.eta, clock.value)}`}</Fact>
        <Fact name="changes of size" title="all pauses of these changes together">
          {job.resizes} <span class="muted">{job.resizes > 0 && `${pause(job.pause_ms)} pause`}</span>
        </Fact>
        <Fact name="samples lost">{job.samples_lost}</Fact>
        {job.cost > 0 && <Fact name="cost">{figure(job.cost)}</Fact>}
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

function Why({ job, explanation }: { job: JobSummary; explanation: Explanation | null }) {
  const sentence = explanation?.sentence ?? job.reason;
  return (
    <section class="card why" aria-labelledby="why-title" data-testid="explanation">
      <h3 id="why-title">Why this size?</h3>
      <p class="sentence" aria-live="polite">
        {sentence}
      </p>
      {job.note && !sentence.includes(job.note) && (
        <p class="muted" data-testid="note">
          <Coded text={job.note} />
        </p>
      )}
      {explanation && <Details explanation={explanation} />}
    </section>
  );
}

/** A text in which commands stand between `backticks`. */
function Coded({ text }: { text: string }) {
  return <>{text.split("`").map((part, at) => (at % 2 === 1 ? <code key={at}>{part}</code> : part))}</>;
}

function Details({ explanation }: { explanation: Explanation }) {
  const { competing, would_change } = explanation;
  return (
    <>
      {competing.length > 0 && (
        <p>
          <span class="muted">Beside it: </span>
          {competing.map((other, at) => (
            <span key={other.job}>
              {at > 0 && ", "}
              {other.job === "other" ? other.name : <a href={jobLink(other.job)}>{other.name}</a>} ({plural(other.workers, "worker")})
            </span>
          ))}
        </p>
      )}
      {would_change.length > 0 && (
        <>
          <p class="muted">What would change it:</p>
          <ul>
            {would_change.map((one) => (
              <li key={one}>
                <Coded text={one} />
              </li>
            ))}
          </ul>
        </>
      )}
    </>
  );
}

