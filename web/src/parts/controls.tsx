/** What can be done to a job: scale, pause, resume, cancel, remove. */

import { useEffect, useRef, useState } from "preact/hooks";
import { api, Refusal, sentence } from "../api/client";
import type { Job } from "../api/types";
import { plural } from "../lib/format";
import { go } from "../lib/route";
import { forget, learn, leaving, may } from "../state/live";
import { hush } from "../state/load";
import { Ask, type Question } from "./ask";

const ENDED = new Set(["finished", "failed", "cancelled"]);
const PAUSED = new Set(["paused", "pausing"]);
/** How often a request is repeated because the job has changed in the meantime, in ways that do not matter to it. */
const TURNS = 5;

/** Whether what somebody has decided on is still so: a job's version grows by itself too, with every resize and every event. */
function unchanged(seen: Job, now: Job): boolean {
  const alike = (states: Set<string>) => states.has(seen.state) === states.has(now.state);
  return seen.wish === now.wish && seen.pinned === now.pinned && alike(ENDED) && alike(PAUSED);
}

export function Controls({ job, changed }: { job: Job; changed: () => void }) {
  const [said, setSaid] = useState<{ text: string; bad: boolean } | null>(null);
  const [question, setQuestion] = useState<Question | null>(null);
  const [busy, setBusy] = useState(false);
  const path = `/v1/jobs/${job.id}`;
  // What was said about the last state is no news in the next one.
  useEffect(() => setSaid((old) => (old?.bad ? old : null)), [job.state]);

  const latest = useRef(job);
  latest.current = job;

  /** One request at a time, for the job that is on the screen; again if only its version was old. */
  const act = async (request: (headers: Record<string, string>) => Promise<Job>, done: string) => {
    setBusy(true);
    try {
      learn([await attempt(request, latest.current)]);
      setSaid({ text: done, bad: false });
    } catch (error) {
      const outrun = error instanceof Refusal && error.status === 412;
      setSaid({ text: outrun ? "Somebody else has changed the job: look again, then repeat it." : sentence(error), bad: true });
    }
    setBusy(false);
    changed();
  };
  const attempt = async (request: (headers: Record<string, string>) => Promise<Job>, seen: Job): Promise<Job> => {
    for (let version = seen.version, turn = 0; ; turn++) {
      try {
        return await request({ "If-Match": `"${version}"` });
      } catch (error) {
        if (!(error instanceof Refusal) || error.status !== 412 || turn >= TURNS) throw error;
        const now = await api.get<Job>(path);
        learn([now]);
        if (!unchanged(seen, now)) throw error;
        version = now.version;
      }
    }
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
      act: () => {
        leaving.add(job.id);
        hush(job.id);
        void api.delete(path).then(
          () => {
            forget(job.id);
            go("/jobs");
          },
          (error) => {
            leaving.delete(job.id);
            setSaid({ text: sentence(error), bad: true });
            changed();
          },
        );
      },
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
  // What somebody has typed or ticked; null while nobody has. News of the job must not change it under their hands.
  const [typed, setTyped] = useState<string | null>(null);
  const [ticked, setTicked] = useState<boolean | null>(null);
  const bounded = (count: number) => Math.min(job.max, Math.max(job.min, Math.round(count) || job.min));
  const workers = typed === null ? standing : bounded(Number(typed));
  const pin = ticked ?? job.pinned;
  const choose = (count: number) => setTyped(String(bounded(count)));
  const submit = (event: Event) => {
    event.preventDefault();
    const done = pin ? `Pinned to ${plural(workers, "worker")}.` : `Wished for ${plural(workers, "worker")}: the policy decides.`;
    void act((headers) => api.post<Job>(`/v1/jobs/${job.id}/scale`, { workers, pin }, headers), done).then(() => {
      setTyped(null);
      setTicked(null);
    });
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
          value={typed ?? standing}
          disabled={busy}
          onInput={(event) => setTyped(event.currentTarget.value)}
          onBlur={() => typed !== null && choose(Number(typed))}
        />
        <button type="button" aria-label="one worker more" disabled={busy || workers >= job.max} onClick={() => choose(workers + 1)}>
          +
        </button>
      </span>
      <label class="inline" title="Exactly this many: the policy does not touch it any more">
        <input type="checkbox" checked={pin} disabled={busy} onChange={(event) => setTicked(event.currentTarget.checked)} /> pin
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
