/** The form for a new job. What it sends is what a job file says. */

import { cloneElement, type VNode } from "preact";
import { useId, useMemo, useRef, useState } from "preact/hooks";
import { api, Refusal, sentence, type Place } from "../api/client";
import type { Job, JobSpec } from "../api/types";
import { go } from "../lib/route";
import { environment, split } from "../lib/words";
import { learn, may, now, overview } from "../state/live";

interface Form {
  name: string;
  command: string;
  shell: boolean;
  plain: boolean;
  workdir: string;
  min: string;
  max: string;
  batch: "fixed" | "linear" | "adaptive";
  priority: string;
  steps: string;
  deadline: string;
  price: string;
  envs: string;
}

const BLANK: Form = {
  name: "",
  command: "",
  shell: false,
  plain: false,
  workdir: "",
  min: "1",
  max: "",
  batch: "fixed",
  priority: "0",
  steps: "",
  deadline: "",
  price: "",
  envs: "",
};

type Built = { spec: JobSpec; places: Place[] };

/** The job that the form means, and what is wrong with it before the server has been asked. */
function build(form: Form, slots: number): Built {
  const places: Place[] = [];
  const wrong = (at: string, text: string) => places.push({ at, text });
  const guarded = <T,>(at: string, make: () => T, otherwise: T): T => {
    try {
      return make();
    } catch (error) {
      wrong(at, sentence(error));
      return otherwise;
    }
  };
  if (!/^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$/.test(form.name)) wrong("name", "small letters, digits and hyphens inside, at most 48");
  if (!form.command.trim()) wrong("run", "what should run? for instance: python train.py --lr 0.1");
  const min = Number(form.min || 1);
  const max = Number(form.max || Math.max(min, slots || 1));
  if (!Number.isInteger(min) || min < 1) wrong("elastic.min", "a whole number of at least 1");
  else if (!Number.isInteger(max) || max < min) wrong("elastic.max", `a whole number of at least ${min}`);
  const deadline = form.deadline ? new Date(form.deadline).getTime() / 1000 : null;
  if (deadline !== null && deadline < now()) wrong("deadline", "is in the past");
  const spec: JobSpec = {
    name: form.name,
    run: form.shell ? form.command : guarded("run", () => split(form.command), []),
    elastic: { min, max, batch: form.batch },
    ...(form.plain ? { plain: true } : {}),
    ...(form.workdir.trim() ? { workdir: form.workdir.trim() } : {}),
    ...(form.envs.trim() ? { envs: guarded("envs", () => environment(form.envs), {}) } : {}),
    ...(Number(form.priority) ? { priority: Number(form.priority) } : {}),
    ...(form.steps ? { steps: Number(form.steps) } : {}),
    ...(deadline === null ? {} : { deadline }),
    ...(form.price ? { price_limit: Number(form.price) } : {}),
  };
  return { spec, places };
}

export function SubmitView() {
  const [form, setForm] = useState(BLANK);
  const [tried, setTried] = useState(false);
  const [refused, setRefused] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  // The same key until the form changes: pressing twice, or again after a lost answer, makes one job.
  const key = useRef("");
  const slots = overview.value?.slots ?? 1;
  const { spec, places } = useMemo(() => build(form, slots), [form, slots]);
  const set = <K extends keyof Form>(name: K, value: Form[K]) => {
    key.current = "";
    setRefused(null);
    setForm((old) => ({ ...old, [name]: value }));
  };
  const text = (name: Exclude<keyof Form, "shell" | "plain" | "batch">) => ({
    name,
    value: form[name],
    onInput: (event: { currentTarget: { value: string } }) => set(name, event.currentTarget.value),
  });
  const submit = async (event: Event) => {
    event.preventDefault();
    setTried(true);
    if (places.length > 0 || busy) return;
    setBusy(true);
    key.current ||= crypto.randomUUID();
    try {
      const job = await api.post<Job>("/v1/jobs", spec, { "Idempotency-Key": key.current });
      learn([job]);
      go(`/jobs/${job.id}`);
    } catch (error) {
      setRefused(error instanceof Error ? error : new Error(String(error)));
    }
    setBusy(false);
  };
  const said = [...(tried ? places : []), ...(refused instanceof Refusal ? refused.places : [])];
  const about = (at: string) => said.filter((place) => place.at === at || place.at.startsWith(`${at}.`) || place.at.endsWith(`.${at}`)).map((place) => place.text);
  return (
    <>
      <h1>Submit a job</h1>
      {!may("submitter") && <p class="notice is-alarm">This token may only look: ask an administrator for one with the scope submitter.</p>}
      <form class="card submit" onSubmit={submit} novalidate>
        <Field label="Name" errors={about("name")}>
          <input {...text("name")} placeholder="digits" autocomplete="off" spellcheck={false} required />
        </Field>
        <Field
          label="Command"
          errors={about("run")}
          help={form.shell ? "Run by your shell; 'stretto run train.py' in it is the elastic part." : "An argument list: quotes work, but no shell ever sees it."}
        >
          <textarea {...text("command")} rows={form.shell ? 4 : 2} placeholder="python train.py --lr 0.1" spellcheck={false} required />
        </Field>
        <label class="inline">
          <input type="checkbox" checked={form.shell} onChange={(event) => set("shell", event.currentTarget.checked)} /> run it in a shell
        </label>
        <label class="inline">
          <input type="checkbox" checked={form.plain} onChange={(event) => set("plain", event.currentTarget.checked)} /> run it as it is: one process,
          never scaled
        </label>
        <Field label="Folder" errors={about("workdir")} help="An existing folder on the cluster. Relative paths of the command start there.">
          <input {...text("workdir")} placeholder="/home/me/project" autocomplete="off" spellcheck={false} />
        </Field>
        <div class="row fields">
          <Field label="Fewest workers" errors={about("elastic.min")}>
            <input {...text("min")} type="number" min={1} inputMode="numeric" />
          </Field>
          <Field label="Most workers" errors={about("elastic.max")}>
            <input {...text("max")} type="number" min={1} inputMode="numeric" placeholder={String(slots)} />
          </Field>
          <Field label="Priority" errors={about("priority")}>
            <input {...text("priority")} type="number" min={-100} max={100} />
          </Field>
        </div>
        <details>
          <summary>More</summary>
          <div class="row fields">
            <Field label="Batch size" errors={about("elastic.batch")}>
              <select value={form.batch} onChange={(event) => set("batch", event.currentTarget.value as Form["batch"])}>
                <option>fixed</option>
                <option>linear</option>
                <option>adaptive</option>
              </select>
            </Field>
            <Field label="Steps, if known" errors={about("steps")}>
              <input {...text("steps")} type="number" min={1} />
            </Field>
            <Field label="Deadline" errors={about("deadline")}>
              <input {...text("deadline")} type="datetime-local" />
            </Field>
            <Field label="Price limit" errors={about("price_limit")}>
              <input {...text("price")} type="number" min={0} step="any" />
            </Field>
          </div>
          <Field label="Environment" errors={about("envs")} help="NAME=value, one a line. Values of names that look secret are masked everywhere.">
            <textarea {...text("envs")} rows={3} spellcheck={false} placeholder="DATA=/data" />
          </Field>
        </details>
        {refused && (
          <div class="trouble" role="alert">
            <p>{refused.message}</p>
          </div>
        )}
        <div class="row">
          <button class="primary" disabled={busy || !may("submitter")}>
            {busy ? "Submitting …" : "Submit"}
          </button>
          <a href="#/jobs">Back to the jobs</a>
        </div>
        <details>
          <summary>The same as a job file</summary>
          <pre>{JSON.stringify(spec, null, 2)}</pre>
          <p class="muted">JSON is YAML: keep it as job.yaml and run stretto submit job.yaml.</p>
        </details>
      </form>
    </>
  );
}

interface FieldProps {
  label: string;
  help?: string;
  errors: string[];
  children: VNode<{ id?: string; "aria-describedby"?: string; "aria-invalid"?: boolean }>;
}

/** The label is the name alone; help and errors describe the field. */
function Field({ label, help, errors, children }: FieldProps) {
  const id = useId();
  const input = cloneElement(children, { id, "aria-describedby": `${id}-more`, "aria-invalid": errors.length > 0 });
  return (
    <div class={`field ${errors.length > 0 ? "is-wrong" : ""}`}>
      <label for={id}>{label}</label>
      {input}
      <div id={`${id}-more`}>
        {errors.map((error) => (
          <p class="error" role="alert" key={error}>
            {error}
          </p>
        ))}
        {help && <p class="help">{help}</p>}
      </div>
    </div>
  );
}
