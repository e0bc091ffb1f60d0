/** What can be done to a job: scale, pause, resume, cancel, remove. */

import { useEffect, useState } from "preact/hooks";
import { api, Refusal, sentence } from "../api/client";
import type { Job } from "../api/types";
import { plural } from "../lib/format";
import { go } from "../lib/route";
import { forget, learn, may } from "../state/live";
import { Ask, type Question } from "./ask";

const ENDED = new Set(["finished", "failed", "cancelled"]);

export function Controls({ job, changed }: { job: Job; changed: () => void }) {
  const [said, setSaid] = useState<{ text: string; bad: boolean } | null>(null);
  const [question, setQuestion] = useState<Question | null>(null);
  const [busy, setBusy] = useState(false);
  const path = `/v1/jobs/${job.id}`;
  // What was said about the last state is no news in the next one.
  useEffect(() => setSaid((old) => (old?.bad ? old : null)), [job.state]);

  /** One request at a time, for the version that is on the screen. */
  const act = async (request: (headers: Record<string, string>) => Promise<Job>, done: string) => {
    setBusy(true);
    try {
      const after = await request({ "If-Match": `"${job.version}"` });
      learn([after]);
      setSaid({ text: done, bad: false });
    } catch (error) {
      const outrun = error instanceof Refusal && error.status === 412;
      setSaid({ text: outrun ? "The job has changed in this moment: look again, then repeat it." : sentence(error), bad: true });
    }
    setBusy(false);
    changed();
  };
  const post = (verb: string, done: string) => () => void act((headers) => api.post<Job>(`${path}/${verb}`, undefined, headers), done);
  const cancel = () =>
    setQuestion({
      title: `Cancel ${job.name}?`,
      text: "Its workers stop at once. It cannot be resumed, but its curves, events and logs stay.",
      yes: "Cancel the job",
      act: post("cancel", "It is being cancelled."),
    });
  const remove = () =>
    setQuestion({
      title: `Remove ${job.name}?`,
      text: "The job, its curves, its logs and its run folder are deleted.",
      yes: "Remove it",
      act: () =>
        void api.delete(path).then(
          () => {
            forget(job.id);
            go("/jobs");
          },
          (error) => setSaid({ text: sentence(error), bad: true }),
        ),
    });
  const allowed = may("submitter");
  return (
    <section class="controls" aria-label="controls">
      {!ENDED.has(job.state) && <Scale job={job} busy={busy || !allowed} act={act} />}
      {(job.state === "running" || job.state === "starting" || job.state === "queued") && (
        <button type="button" disabled={busy || !allowed} onClick={post("pause", "It pauses at the next step boundary.")}>
          Pause
        </button>
      )}
      {(job.state === "paused" || job.state === "pausing") && (
        <button type="button" disabled={busy || !allowed || job.state === "pausing"} onClick={post("resume", "It is back in the queue.")}>
          Resume
        </button>
      )}
      {!ENDED.has(job.state) && (
        <button type="button" class="danger" disabled={busy || !allowed || job.state === "cancelling"} onClick={cancel}>
          Cancel
        </button>
      )}
      {ENDED.has(job.state) && (
        <button type="button" disabled={busy || !allowed} onClick={remove}>
          Remove
        </button>
      )}
      {!allowed && <span class="muted">This token may only look.</span>}
      <span class={said?.bad ? "error" : "muted"} role="status">
        {said?.text}
      </span>
      {question && <Ask question={question} close={() => setQuestion(null)} />}
    </section>
  );
}

interface ScaleProps {
  job: Job;
  busy: boolean;
  act: (request: (headers: Record<string, string>) => Promise<Job>, done: string) => Promise<void>;
}

/** A wish that the policy respects within the limits; pinned, exactly this many. */
function Scale({ job, busy, act }: ScaleProps) {
  const standing = job.wish ?? (job.wanted || job.min);
  const [workers, setWorkers] = useState(standing);
  const [pin, setPin] = useState(job.pinned);
  const [touched, setTouched] = useState(false);
  // What somebody has typed stays: news of the job must not change it under their hands.
  useEffect(() => {
    if (!touched) setWorkers(standing);
  }, [standing, touched]);
  useEffect(() => {
    if (!touched) setPin(job.pinned);
  }, [job.pinned, touched]);
  const choose = (count: number) => {
    setTouched(true);
    setWorkers(bounded(count));
  };
  const bounded = (count: number) => Math.min(job.max, Math.max(job.min, Math.round(count) || job.min));
  const submit = (event: Event) => {
    event.preventDefault();
    const done = pin ? `Pinned to ${plural(workers, "worker")}.` : `Wished for ${plural(workers, "worker")}: the policy decides.`;
    void act((headers) => api.post<Job>(`/v1/jobs/${job.id}/scale`, { workers, pin }, headers), done).then(() => setTouched(false));
  };
  const release = () => void act((headers) => api.patch<Job>(`/v1/jobs/${job.id}`, { wish: null }, headers), "The policy decides alone again.");
  return (
    <form class="scale" onSubmit={submit} aria-label="scale">
      <span class="stepper">
        <button type="button" aria-label="one worker less" disabled={busy || workers <= job.min} onClick={() => choose(workers - 1)}>
          −
        </button>
        <input
          type="number"
          aria-label="workers"
          min={job.min}
          max={job.max}
          value={workers}
          disabled={busy}
          onChange={(event) => choose(Number(event.currentTarget.value))}
        />
        <button type="button" aria-label="one worker more" disabled={busy || workers >= job.max} onClick={() => choose(workers + 1)}>
          +
        </button>
      </span>
      <label class="inline" title="Exactly this many: the policy does not touch it any more">
        <input type="checkbox" checked={pin} disabled={busy} onChange={(event) => {
            setTouched(true);
            setPin(event.currentTarget.checked);
          }} /> pin
      </label>
      <button class="primary" disabled={busy}>
        Scale
      </button>
      {job.wish !== null && (
        <button type="button" class="quiet" disabled={busy} onClick={release} title="Give the wish back to the policy">
          {job.pinned ? "Unpin" : "Drop the wish"}
        </button>
      )}
    </form>
  );
}
