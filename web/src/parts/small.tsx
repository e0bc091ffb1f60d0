/** The small parts that several views share. */

import type { ComponentChildren } from "preact";
import { Refusal } from "../api/client";
import type { JobState, JobSummary } from "../api/types";
import { colourOf } from "../lib/colours";
import { NONE, percent, whole } from "../lib/format";

export function State({ state }: { state: JobState }) {
  return <span class={`state state-${state}`}>{state}</span>;
}

export function Dot({ job }: { job: string }) {
  return <i class="dot" style={{ background: colourOf(job) }} aria-hidden="true" />;
}

/** `2 of 1–4`, with what the last decision gave if that is not reached yet. */
export function Workers({ line }: { line: JobSummary }) {
  const active = line.workers > 0 || line.wanted > 0;
  const moving = line.wanted !== line.workers && active;
  const limits = line.min === line.max ? `${line.max}` : `${line.min}–${line.max}`;
  return (
    <span class="workers" title={`${line.workers} training, ${line.wanted} given, ${limits} allowed`}>
      <b>{line.workers}</b>
      {moving && <span class="wanted">→ {line.wanted}</span>}
      <span class="muted"> / {limits}</span>
      {line.pinned && <span class="tag">pinned</span>}
    </span>
  );
}

export function Meter({ fraction, label }: { fraction: number | null; label: string }) {
  if (fraction === null) return <span class="muted">{label}</span>;
  const width = Math.min(100, Math.max(0, fraction * 100));
  return (
    <span class="meter" role="progressbar" aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(width)} aria-label="progress">
      <span class="meter-bar">
        <span style={{ width: `${width}%` }} />
      </span>
      <span class="meter-text">{percent(fraction)}</span>
    </span>
  );
}

export function progressLabel(line: JobSummary): string {
  const { step, steps, epoch } = line.progress;
  if (step === 0 && epoch === null) return NONE;
  return steps === null ? `step ${whole(step)}` : `step ${whole(step)} of ${whole(steps)}`;
}

const WIDE = 96;
const HIGH = 24;

/** The last losses as a line without axes. */
export function Spark({ values, label }: { values: readonly number[]; label: string }) {
  const low = Math.min(...values);
  const span = Math.max(...values) - low || 1;
  const points = values.map((value, at) => `${((at / (values.length - 1)) * (WIDE - 4) + 2).toFixed(1)},${(HIGH - 3 - ((value - low) / span) * (HIGH - 6)).toFixed(1)}`);
  return (
    <svg class="spark" viewBox={`0 0 ${WIDE} ${HIGH}`} width={WIDE} height={HIGH} role="img" aria-label={label}>
      <polyline points={points.join(" ")} />
    </svg>
  );
}

export function Fact({ name, children, title }: { name: string; children: ComponentChildren; title?: string }) {
  return (
    <div class="fact" title={title}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

/** What went wrong, and the way on. */
export function Trouble({ error, again }: { error: Error; again?: () => void }) {
  const places = error instanceof Refusal ? error.places : [];
  return (
    <div class="trouble" role="alert">
      <p>{error.message}</p>
      {places.length > 0 && (
        <ul>
          {places.map((place) => (
            <li key={place.at + place.text}>
              <code>{place.at}</code> {place.text}
            </li>
          ))}
        </ul>
      )}
      {again && (
        <button type="button" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <p class="loading" role="status">
      Loading {what} …
    </p>
  );
}
