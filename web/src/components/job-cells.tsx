/** Small displays of one value of a job, used by several views. */

import type { JobState, JobSummary } from "../api/types";
import { jobColour } from "../lib/colours";
import { formatInteger, formatPercent, MISSING } from "../lib/format";

export function StateBadge({ state }: { state: JobState }) {
  return <span class={`state state-${state}`}>{state}</span>;
}

/** A square in the job's colour. */
export function JobDot({ job }: { job: string }) {
  return <i class="dot" style={{ background: jobColour(job) }} aria-hidden="true" />;
}

/** `2 / 1–4`, and `2 → 3 / 1–4` until the job has reached the size that the policy allocated. */
export function WorkerCount({ job }: { job: JobSummary }) {
  const limits = job.min === job.max ? `${job.max}` : `${job.min}–${job.max}`;
  return (
    <span class="workers" title={`${job.workers} training, ${job.wanted} allocated, ${limits} allowed`}>
      <b>{job.workers}</b>
      {job.wanted !== job.workers && <span class="wanted">→ {job.wanted}</span>}
      <span class="muted"> / {limits}</span>
      {job.pinned && <span class="tag">pinned</span>}
    </span>
  );
}

/** A progress bar; only the label if it is not known how far the job has come. */
export function ProgressBar({ fraction, label }: { fraction: number | null; label: string }) {
  if (fraction === null) return <span class="muted">{label}</span>;
  const width = Math.min(100, Math.max(0, fraction * 100));
  return (
    <span
      class="progress"
      role="progressbar"
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(width)}
      aria-label="progress"
    >
      <span class="progress-bar">
        <span style={{ width: `${width}%` }} />
      </span>
      <span class="progress-text">{formatPercent(fraction)}</span>
    </span>
  );
}

export function progressLabel(job: JobSummary): string {
  const { step, steps, epoch } = job.progress;
  if (step === 0 && epoch === null) return MISSING;
  return steps === null ? `step ${formatInteger(step)}` : `step ${formatInteger(step)} of ${formatInteger(steps)}`;
}

const SPARKLINE_WIDTH = 96;
const SPARKLINE_HEIGHT = 24;

/** The last losses as a line without axes. */
export function Sparkline({ values, label }: { values: readonly number[]; label: string }) {
  const low = Math.min(...values);
  const span = Math.max(...values) - low || 1;
  const points = values.map((value, at) => {
    const x = (at / (values.length - 1)) * (SPARKLINE_WIDTH - 4) + 2;
    const y = SPARKLINE_HEIGHT - 3 - ((value - low) / span) * (SPARKLINE_HEIGHT - 6);
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  });
  const viewBox = `0 0 ${SPARKLINE_WIDTH} ${SPARKLINE_HEIGHT}`;
  return (
    <svg class="sparkline" viewBox={viewBox} width={SPARKLINE_WIDTH} height={SPARKLINE_HEIGHT} role="img" aria-label={label}>
      <polyline points={points.join(" ")} />
    </svg>
  );
}
