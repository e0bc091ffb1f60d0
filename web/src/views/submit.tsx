/** The form for a new job. It sends what a job file contains. */

import { cloneElement, type VNode } from "preact";
import { useId, useMemo, useRef, useState } from "preact/hooks";
import { ApiError } from "../api/api-error";
import { api } from "../api/client";
import type { JobDetails, JobSpec } from "../api/types";
import { BLANK_FORM, buildSpec, errorsAt, type SubmitForm } from "../lib/submit-form";
import { navigate } from "../state/navigation";
import { hasScope, jobs, overview, serverNow } from "../state/server-state";

type TextField = Exclude<keyof SubmitForm, "shell" | "plain" | "batch">;
type SetField = <K extends keyof SubmitForm>(name: K, value: SubmitForm[K]) => void;

interface FormProps {
  form: SubmitForm;
  set: SetField;
  errors: (field: string) => string[];
}

export function SubmitView() {
  const [form, setForm] = useState(BLANK_FORM);
  const [attempted, setAttempted] = useState(false);
  const [refusal, setRefusal] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  // The same key until the form changes: a second click, or a retry after a lost answer, submits one job.
  const idempotencyKey = useRef("");
  const slots = overview.value?.slots ?? 1;
  const { spec, errors } = useMemo(() => buildSpec(form, slots, serverNow()), [form, slots]);
  const set: SetField = (name, value) => {
    idempotencyKey.current = "";
    setRefusal(null);
    setForm((old) => ({ ...old, [name]: value }));
  };
  const submit = async (event: Event) => {
    event.preventDefault();
    setAttempted(true);
    if (errors.length > 0 || busy) return;
    setBusy(true);
    idempotencyKey.current ||= crypto.randomUUID();
    try {
      const job = await api.post<JobDetails>("/v1/jobs", spec, { "Idempotency-Key": idempotencyKey.current });
      jobs.update([job]);
      navigate(`/jobs/${job.id}`);
    } catch (error) {
      setRefusal(error instanceof Error ? error : new Error(String(error), { cause: error }));
    }
    setBusy(false);
  };
  const shownErrors = [...(attempted ? errors : []), ...(refusal instanceof ApiError ? refusal.fieldErrors : [])];
  const props = { form, set, errors: (field: string) => errorsAt(shownErrors, field) };
  const allowed = hasScope("submitter");
  return (
    <>
      <h1>Submit a job</h1>
      {!allowed && (
        <p class="notice is-alarm">This token is read-only. Ask an administrator for a token with the scope “submitter”.</p>
      )}
      <form class="card submit" onSubmit={(event) => void submit(event)} novalidate>
        <CommandFields {...props} />
        <SizeFields {...props} slots={slots} />
        <MoreFields {...props} />
        {refusal && (
          <div class="error-box" role="alert">
            <p>{refusal.message}</p>
          </div>
        )}
        <div class="row">
          <button type="submit" class="primary" disabled={busy || !allowed}>
            {busy ? "Submitting …" : "Submit"}
          </button>
          <a href="#/jobs">Back to the jobs</a>
        </div>
        <JobFile spec={spec} />
      </form>
    </>
  );
}

/** The props of an input that edits one field of the form. */
function bind({ form, set }: FormProps, name: TextField) {
  return {
    name,
    value: form[name],
    onInput: (event: { currentTarget: { value: string } }) => set(name, event.currentTarget.value),
  };
}

function CommandFields(props: FormProps) {
  const { form, set, errors } = props;
  const help = form.shell
    ? "Your shell runs this text. Use 'stretto run train.py' in it for the elastic part."
    : "A list of arguments. Quotes work, but no shell interprets the text.";
  return (
    <>
      <Field label="Name" errors={errors("name")}>
        <input {...bind(props, "name")} placeholder="digits" autocomplete="off" spellcheck={false} required />
      </Field>
      <Field label="Command" errors={errors("run")} help={help}>
        <textarea
          {...bind(props, "command")}
          rows={form.shell ? 4 : 2}
          placeholder="python train.py --lr 0.1"
          spellcheck={false}
          required
        />
      </Field>
      <label class="inline">
        <input type="checkbox" checked={form.shell} onChange={(event) => set("shell", event.currentTarget.checked)} /> run in a
        shell
      </label>
      <label class="inline">
        <input type="checkbox" checked={form.plain} onChange={(event) => set("plain", event.currentTarget.checked)} /> run as one
        process that is never scaled
      </label>
      <Field
        label="Working directory"
        errors={errors("workdir")}
        help="An existing directory on the cluster. The command starts there."
      >
        <input {...bind(props, "workdir")} placeholder="/home/me/project" autocomplete="off" spellcheck={false} />
      </Field>
    </>
  );
}

function SizeFields(props: FormProps & { slots: number }) {
  const { errors, slots } = props;
  return (
    <div class="row fields">
      <Field label="Minimum workers" errors={errors("elastic.min")}>
        <input {...bind(props, "min")} type="number" min={1} inputMode="numeric" />
      </Field>
      <Field label="Maximum workers" errors={errors("elastic.max")}>
        <input {...bind(props, "max")} type="number" min={1} inputMode="numeric" placeholder={String(slots)} />
      </Field>
      <Field label="Priority" errors={errors("priority")}>
        <input {...bind(props, "priority")} type="number" min={-100} max={100} />
      </Field>
    </div>
  );
}

function MoreFields(props: FormProps) {
  const { form, set, errors } = props;
  return (
    <details>
      <summary>More options</summary>
      <div class="row fields">
        <Field label="Batch size" errors={errors("elastic.batch")}>
          <select value={form.batch} onChange={(event) => set("batch", event.currentTarget.value as SubmitForm["batch"])}>
            <option>fixed</option>
            <option>linear</option>
            <option>adaptive</option>
          </select>
        </Field>
        <Field label="Steps, if known" errors={errors("steps")}>
          <input {...bind(props, "steps")} type="number" min={1} />
        </Field>
        <Field label="Deadline" errors={errors("deadline")}>
          <input {...bind(props, "deadline")} type="datetime-local" />
        </Field>
        <Field label="Price limit" errors={errors("price_limit")}>
          <input {...bind(props, "price")} type="number" min={0} step="any" />
        </Field>
      </div>
      <Field
        label="Environment"
        errors={errors("envs")}
        help="NAME=value, one per line. The server masks the values of names that look like secrets."
      >
        <textarea {...bind(props, "envs")} rows={3} spellcheck={false} placeholder="DATA=/data" />
      </Field>
    </details>
  );
}

function JobFile({ spec }: { spec: JobSpec }) {
  return (
    <details>
      <summary>The same as a job file</summary>
      <pre>{JSON.stringify(spec, null, 2)}</pre>
      <p class="muted">
        JSON is valid YAML: save this as <code>job.yaml</code> and run <code>stretto submit job.yaml</code>.
      </p>
    </details>
  );
}

interface FieldProps {
  label: string;
  help?: string;
  errors: string[];
  children: VNode<{ id?: string; "aria-describedby"?: string; "aria-invalid"?: boolean }>;
}

/** An input with its label; help and errors describe it to screen readers. */
function Field({ label, help, errors, children }: FieldProps) {
  const id = useId();
  const input = cloneElement(children, { id, "aria-describedby": `${id}-help`, "aria-invalid": errors.length > 0 });
  return (
    <div class={`field ${errors.length > 0 ? "is-invalid" : ""}`}>
      <label for={id}>{label}</label>
      {input}
      <div id={`${id}-help`}>
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
