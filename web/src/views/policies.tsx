/** The scheduling policies, and what another one would have done with the jobs of the last hours. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, errorMessage } from "../api/api-error";
import { api } from "../api/client";
import type { Outcome, Policies, Policy, WhatIf } from "../api/types";
import { EmptyState, ErrorMessage, Loading } from "../components/feedback";
import { formatDuration, formatPercent, pluralize } from "../lib/format";
import { markReady } from "../lib/ready-mark";
import { hasScope, loadOverview } from "../state/server-state";
import { useLoad } from "../state/use-load";

/** The server ends a replay after a minute, and says so. */
const REPLAY_TIMEOUT_MS = 90_000;
const HOURS = [1, 6, 24, 72, 168];
const MAX_JOBS = 200;

export function PoliciesView() {
  const policies = useLoad("policies", (signal) => api.get<Policies>("/v1/policies", {}, signal));
  const [error, setError] = useState<string | null>(null);
  const [candidate, setCandidate] = useState<string | null>(null);
  useEffect(() => {
    if (policies.value) markReady();
  }, [policies.value]);
  const activate = async (name: string) => {
    try {
      await api.put<Policies>("/v1/policies/active", { name });
      setError(null);
      policies.reload();
      void loadOverview();
    } catch (reason) {
      setError(errorMessage(reason));
    }
  };
  if (policies.error && !policies.value) return <ErrorMessage error={policies.error} onRetry={policies.reload} />;
  if (!policies.value) return <Loading what="policies" />;
  const { items, active, interval_s } = policies.value;
  return (
    <>
      <h1>Policies</h1>
      <p class="lead">
        The policy decides how many workers each job gets: whenever a job arrives or ends, and every {formatDuration(interval_s)}.
        Jobs keep training when you switch to another policy.
      </p>
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      <ul class="policies">
        {items.map((policy) => (
          <PolicyCard
            key={policy.name}
            policy={policy}
            onCompare={() => setCandidate(policy.name)}
            onActivate={() => void activate(policy.name)}
          />
        ))}
      </ul>
      <WhatIfCard names={items.map((policy) => policy.name)} active={active} candidate={candidate} key={candidate} />
    </>
  );
}

function PolicyCard({ policy, onCompare, onActivate }: { policy: Policy; onCompare: () => void; onActivate: () => void }) {
  return (
    <li class={`card ${policy.active ? "is-active" : ""}`}>
      <h2>
        {policy.name} {policy.active && <span class="tag">active</span>}
      </h2>
      <p>{policy.text}</p>
      <div class="row">
        {!policy.active && (
          <button type="button" onClick={onCompare}>
            What if?
          </button>
        )}
        {!policy.active && hasScope("admin") && (
          <button type="button" class="quiet" onClick={onActivate}>
            Activate
          </button>
        )}
      </div>
    </li>
  );
}

function WhatIfCard({ names, active, candidate }: { names: string[]; active: string; candidate: string | null }) {
  const [policy, setPolicy] = useState(candidate ?? names.find((name) => name !== active) ?? active);
  const [baseline, setBaseline] = useState(active);
  const [hours, setHours] = useState(6);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const [comparison, setComparison] = useState<WhatIf | null>(null);
  const replay = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      setComparison(await api.post<WhatIf>("/v1/policies/what-if", { policy, hours, baseline }, {}, REPLAY_TIMEOUT_MS));
      setError(null);
    } catch (reason) {
      setComparison(null);
      setError(reason instanceof ApiError ? reason : new Error(errorMessage(reason), { cause: reason }));
    }
    setBusy(false);
  };
  return (
    <section class="card" aria-labelledby="what-if-title">
      <h2 id="what-if-title">What if?</h2>
      <p class="muted">
        Replays the jobs of the last hours in the simulator under both policies, and compares when they would have finished.
      </p>
      <form class="row fields" onSubmit={(event) => void replay(event)}>
        <PolicySelect label="policy" names={names} value={policy} onChange={setPolicy} />
        <PolicySelect label="instead of" names={names} value={baseline} onChange={setBaseline} />
        <label>
          over the last
          <select value={String(hours)} onChange={(event) => setHours(Number(event.currentTarget.value))}>
            {HOURS.map((count) => (
              <option key={count} value={String(count)}>
                {count < 48 ? pluralize(count, "hour") : pluralize(count / 24, "day")}
              </option>
            ))}
          </select>
        </label>
        <button type="submit" class="primary" disabled={busy}>
          {busy ? "Replaying …" : "Replay"}
        </button>
      </form>
      <div aria-live="polite">
        {error && <ErrorMessage error={error} />}
        {comparison && <Comparison comparison={comparison} />}
      </div>
    </section>
  );
}

interface PolicySelectProps {
  label: string;
  names: string[];
  value: string;
  onChange: (name: string) => void;
}

function PolicySelect({ label, names, value, onChange }: PolicySelectProps) {
  return (
    <label>
      {label}
      <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {names.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
    </label>
  );
}

interface ComparisonRow {
  label: string;
  value: (outcome: Outcome) => number;
  format: (value: number) => string;
}

const ROWS: readonly ComparisonRow[] = [
  { label: "average completion", value: (outcome) => outcome.average_s, format: formatDuration },
  { label: "median completion", value: (outcome) => outcome.median_s, format: formatDuration },
  { label: "99% done within", value: (outcome) => outcome.p99_s, format: formatDuration },
  { label: "all done within", value: (outcome) => outcome.makespan_s, format: formatDuration },
  { label: "slots in use", value: (outcome) => outcome.utilisation, format: formatPercent },
];

/** Class of the verdict: differences of 1% are no difference. */
function verdictClass(ratio: number): string {
  if (ratio < 0.99) return "is-better";
  return ratio > 1.01 ? "is-worse" : "";
}

function Comparison({ comparison }: { comparison: WhatIf }) {
  const { baseline, other, ratio, sentence, jobs } = comparison;
  if (jobs === 0) return <EmptyState title={sentence || "No jobs in this time: choose a longer one"} />;
  return (
    <div class="comparison" data-testid="what-if">
      <p class={`verdict ${verdictClass(ratio)}`}>{sentence}</p>
      <div class="table-box">
        <table class="compare">
          <thead>
            <tr>
              <th scope="col">{pluralize(jobs, "job")}</th>
              <th scope="col">{baseline.policy}</th>
              <th scope="col">{other.policy}</th>
            </tr>
          </thead>
          <tbody>
            {ROWS.map((row) => (
              <ComparisonTableRow key={row.label} row={row} baseline={baseline} other={other} />
            ))}
          </tbody>
        </table>
      </div>
      <JobComparison comparison={comparison} />
    </div>
  );
}

function ComparisonTableRow({ row, baseline, other }: { row: ComparisonRow; baseline: Outcome; other: Outcome }) {
  const [before, after] = [row.value(baseline), row.value(other)];
  const longest = Math.max(before, after) || 1;
  const cell = (value: number, kind: string) => (
    <td>
      <span class={`bar ${kind}`}>
        <span style={{ width: `${(value / longest) * 100}%` }} />
      </span>
      {row.format(value)}
    </td>
  );
  return (
    <tr>
      <th scope="row">{row.label}</th>
      {cell(before, "")}
      {cell(after, "is-other")}
    </tr>
  );
}

function JobComparison({ comparison: { baseline, other } }: { comparison: WhatIf }) {
  const jobs = Object.keys(baseline.jobs).filter((job) => job in other.jobs);
  if (jobs.length === 0) return null;
  return (
    <details>
      <summary>Job by job</summary>
      <div class="table-box">
        <table class="compare">
          <tbody>
            {jobs.slice(0, MAX_JOBS).map((job) => (
              <tr key={job}>
                <th scope="row">{job}</th>
                <td>{formatDuration(baseline.jobs[job])}</td>
                <td>{formatDuration(other.jobs[job])}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}
