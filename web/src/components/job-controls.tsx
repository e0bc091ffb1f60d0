/** Actions on a job: scale, pause, resume, cancel, remove. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, errorMessage } from "../api/api-error";
import { api } from "../api/client";
import type { JobDetails } from "../api/types";
import { pluralize } from "../lib/format";
import { hasEnded, sameIntent } from "../lib/job-state";
import { navigate } from "../state/navigation";
import { deleting, hasScope, jobs, removeJob } from "../state/server-state";
import { abortRequests } from "../state/use-load";
import { type Confirmation, ConfirmDialog } from "./confirm-dialog";

/** How often a request is repeated because the job's version was out of date. */
const MAX_RETRIES = 5;

type JobRequest = (headers: Record<string, string>) => Promise<JobDetails>;
type RunAction = (request: JobRequest, done: string) => Promise<void>;

interface Message {
  text: string;
  isError: boolean;
}

const jobPath = (job: JobDetails) => `/v1/jobs/${job.id}`;

/**
 * Sends a request for the version of the job that is on the screen. A version grows by itself, with every resize and every
 * event: the request is repeated with the new one unless somebody changed what this request is about.
 */
async function sendForVersion(request: JobRequest, shown: JobDetails): Promise<JobDetails> {
  for (let { version } = shown, retries = 0; ; retries++) {
    try {
      return await request({ "If-Match": `"${version}"` });
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 412 || retries >= MAX_RETRIES) throw error;
      const current = await api.get<JobDetails>(jobPath(shown));
      jobs.update([current]);
      if (!sameIntent(shown, current)) throw error;
      version = current.version;
    }
  }
}

function describeError(error: unknown): string {
  const conflict = error instanceof ApiError && error.status === 412;
  return conflict ? "Somebody else changed the job. Check its state, then try again." : errorMessage(error);
}

export function JobControls({ job, onChange }: { job: JobDetails; onChange: () => void }) {
  const [message, setMessage] = useState<Message | null>(null);
  const [confirmation, setConfirmation] = useState<Confirmation | null>(null);
  const [busy, setBusy] = useState(false);
  const allowed = hasScope("submitter");
  const disabled = busy || !allowed;
  const latest = useRef(job);
  latest.current = job;
  // A success message is about the last state: it goes with the next one.
  useEffect(() => setMessage((old) => (old?.isError ? old : null)), [job.state]);

  const run: RunAction = async (request, done) => {
    setBusy(true);
    try {
      jobs.update([await sendForVersion(request, latest.current)]);
      setMessage({ text: done, isError: false });
    } catch (error) {
      setMessage({ text: describeError(error), isError: true });
    }
    setBusy(false);
    onChange();
  };
  const post = (verb: string, done: string) => () =>
    void run((headers) => api.post<JobDetails>(`${jobPath(job)}/${verb}`, undefined, headers), done);
  const remove = async () => {
    deleting.add(job.id);
    abortRequests(job.id);
    try {
      await api.delete(jobPath(job));
      removeJob(job.id);
      navigate("/jobs");
    } catch (error) {
      deleting.delete(job.id);
      setMessage({ text: errorMessage(error), isError: true });
      onChange();
    }
  };
  const confirmCancel = () =>
    setConfirmation({
      title: `Cancel ${job.name}?`,
      text: "Its workers stop at once. The job cannot be resumed; its metrics, events and logs are kept.",
      confirmLabel: "Cancel the job",
      onConfirm: post("cancel", "The job is being cancelled."),
    });
  const confirmRemove = () =>
    setConfirmation({
      title: `Remove ${job.name}?`,
      text: "This deletes the job with its metrics, logs and run folder.",
      confirmLabel: "Remove the job",
      onConfirm: () => void remove(),
    });
  return (
    <section class="controls" aria-label="controls">
      {!hasEnded(job.state) && <ScaleForm job={job} disabled={disabled} run={run} />}
      {["running", "starting", "queued"].includes(job.state) && (
        <button type="button" disabled={disabled} onClick={post("pause", "The job pauses at its next step boundary.")}>
          Pause
        </button>
      )}
      {(job.state === "paused" || job.state === "pausing") && (
        <button type="button" disabled={disabled || job.state === "pausing"} onClick={post("resume", "The job is queued again.")}>
          Resume
        </button>
      )}
      {!hasEnded(job.state) && (
        <button type="button" class="danger" disabled={disabled || job.state === "cancelling"} onClick={confirmCancel}>
          Cancel
        </button>
      )}
      {hasEnded(job.state) && (
        <button type="button" disabled={disabled} onClick={confirmRemove}>
          Remove
        </button>
      )}
      {!allowed && <span class="muted">This token is read-only.</span>}
      <span class={message?.isError ? "error" : "muted"} role="status">
        {message?.text}
      </span>
      {confirmation && <ConfirmDialog confirmation={confirmation} onClose={() => setConfirmation(null)} />}
    </section>
  );
}

/** Requests a size, which the policy follows if it can; a pinned size is fixed. */
function ScaleForm({ job, disabled, run }: { job: JobDetails; disabled: boolean; run: RunAction }) {
  const requested = job.wish ?? (job.wanted || job.min);
  // What the user typed or ticked; null before that. Updates of the job must not overwrite it.
  const [typed, setTyped] = useState<string | null>(null);
  const [ticked, setTicked] = useState<boolean | null>(null);
  const clamp = (count: number) => Math.min(job.max, Math.max(job.min, Math.round(count) || job.min));
  const workers = typed === null ? requested : clamp(Number(typed));
  const pin = ticked ?? job.pinned;
  const choose = (count: number) => setTyped(String(clamp(count)));
  const submit = async (event: Event) => {
    event.preventDefault();
    const size = pluralize(workers, "worker");
    const done = pin ? `Pinned to ${size}.` : `Requested ${size}: the policy decides.`;
    await run((headers) => api.post<JobDetails>(`${jobPath(job)}/scale`, { workers, pin }, headers), done);
    setTyped(null);
    setTicked(null);
  };
  const dropRequest = () =>
    void run((headers) => api.patch<JobDetails>(jobPath(job), { wish: null }, headers), "The policy decides the size again.");
  return (
    <form class="scale" onSubmit={(event) => void submit(event)} aria-label="scale">
      <span class="stepper">
        <button
          type="button"
          aria-label="one worker fewer"
          disabled={disabled || workers <= job.min}
          onClick={() => choose(workers - 1)}
        >
          −
        </button>
        <input
          type="number"
          aria-label="workers"
          min={job.min}
          max={job.max}
          value={typed ?? requested}
          disabled={disabled}
          onInput={(event) => setTyped(event.currentTarget.value)}
          onBlur={() => typed !== null && choose(Number(typed))}
        />
        <button
          type="button"
          aria-label="one worker more"
          disabled={disabled || workers >= job.max}
          onClick={() => choose(workers + 1)}
        >
          +
        </button>
      </span>
      <label class="inline" title="Keep exactly this size, whatever the policy would decide">
        <input type="checkbox" checked={pin} disabled={disabled} onChange={(event) => setTicked(event.currentTarget.checked)} /> pin
      </label>
      <button type="submit" class="primary" disabled={disabled}>
        Scale
      </button>
      {job.wish !== null && (
        <button type="button" class="quiet" disabled={disabled} onClick={dropRequest} title="Let the policy decide the size again">
          {job.pinned ? "Unpin" : "Drop the request"}
        </button>
      )}
    </form>
  );
}
