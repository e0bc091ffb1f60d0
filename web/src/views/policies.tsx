/** The policies, and what another one would have done with the last hours. */

import { useState } from "preact/hooks";
import { api, Refusal, sentence } from "../api/client";
import type { Outcome, Policies, WhatIf } from "../api/types";
import { duration, percent, plural } from "../lib/format";
import { Empty, Loading, Trouble } from "../parts/small";
import { loadHead, may } from "../state/live";
import { useLoad } from "../state/load";
import { ready } from "../lib/ready";

export function PoliciesView() {
  const policies = useLoad("policies", (signal) => api.get<Policies>("/v1/policies", {}, signal));
  const [error, setError] = useState<string | null>(null);
  const [asked, setAsked] = useState<string | null>(null);
  const use = (name: string) =>
    api.put<Policies>("/v1/policies/active", { name }).then(
      () => {
        setError(null);
        policies.again();
        void loadHead();
      },
      (reason) => setError(sentence(reason)),
    );
  if (policies.error && !policies.value) return <Trouble error={policies.error} again={policies.again} />;
  if (!policies.value) return <Loading what="policies" />;
  ready();
  const { items, active, interval_s } = policies.value;
  return (
    <>
      <h1>Policies</h1>
      <p class="lead">
        A policy decides which job gets how many workers: at once when a job comes or goes, and every {duration(interval_s)}. No change of
        policy stops a job.
      </p>
      {error && <p class="error" role="alert">{error}</p>}
      <ul class="policies">
        {items.map((policy) => (
          <li key={policy.name} class={`card ${policy.active ? "is-active" : ""}`}>
            <h2>
              {policy.name} {policy.active && <span class="tag">active</span>}
            </h2>
            <p>{policy.text}</p>
            <div class="row">
              {!policy.active && (
                <button type="button" onClick={() => setAsked(policy.name)}>
                  What if?
                </button>
              )}
              {!policy.active && may("admin") && (
                <button type="button" class="quiet" onClick={() => void use(policy.name)}>
                  Use it
                </button>
              )}
            </div>
          </li>
        ))}
      </ul>
      <WhatIfCard names={items.map((policy) => policy.name)} active={active} asked={asked} key={asked} />
    </>
  );
}

/** The server ends a replay that takes longer than a minute, and says so. */
const REPLAY_MS = 90_000;

function WhatIfCard({ names, active, asked }: { names: string[]; active: string; asked: string | null }) {
  const [policy, setPolicy] = useState(asked ?? names.find((name) => name !== active) ?? active);
  const [baseline, setBaseline] = useState(active);
  const [hours, setHours] = useState(6);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const [found, setFound] = useState<WhatIf | null>(null);
  const ask = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      setFound(await api.post<WhatIf>("/v1/policies/what-if", { policy, hours, baseline }, {}, REPLAY_MS));
      setError(null);
    } catch (reason) {
      setFound(null);
      setError(reason instanceof Refusal ? reason : new Error(sentence(reason)));
    }
    setBusy(false);
  };
  return (
    <section class="card" aria-labelledby="whatif-title">
      <h2 id="whatif-title">What if?</h2>
      <p class="muted">Replays the jobs of the last hours in the simulator, under both policies, and compares when they would have finished.</p>
      <form class="row fields" onSubmit={ask}>
        <Choice label="policy" names={names} value={policy} set={setPolicy} />
        <Choice label="instead of" names={names} value={baseline} set={setBaseline} />
        <label>
          over the last
          <select value={String(hours)} onChange={(event) => setHours(Number(event.currentTarget.value))}>
            {[1, 6, 24, 72, 168].map((one) => (
              <option key={one} value={String(one)}>
                {one < 48 ? plural(one, "hour") : plural(one / 24, "day")}
              </option>
            ))}
          </select>
        </label>
        <button class="primary" disabled={busy}>
          {busy ? "Replaying …" : "Replay"}
        </button>
      </form>
      <div aria-live="polite">
        {error && <Trouble error={error} />}
        {found && <Result found={found} />}
      </div>
    </section>
  );
}

function Choice({ label, names, value, set }: { label: string; names: string[]; value: string; set: (name: string) => void }) {
  return (
    <label>
      {label}
      <select value={value} onChange={(event) => set(event.currentTarget.value)}>
        {names.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
    </label>
  );
}

const ROWS: readonly (readonly [string, (outcome: Outcome) => number, (value: number) => string])[] = [
  ["average completion", (one) => one.average_s, duration],
  ["median completion", (one) => one.median_s, duration],
  ["99% done within", (one) => one.p99_s, duration],
  ["all done within", (one) => one.makespan_s, duration],
  ["slots in use", (one) => one.utilisation, percent],
];

function Result({ found }: { found: WhatIf }) {
  if (found.jobs === 0) return <Empty title={found.sentence || "No jobs in this time: choose a longer one"} />;
  return (
    <div class="result" data-testid="what-if">
      <p class={`verdict ${found.ratio < 0.99 ? "is-better" : found.ratio > 1.01 ? "is-worse" : ""}`}>{found.sentence}</p>
      <div class="table-box">
        <table class="compare">
          <thead>
            <tr>
              <th scope="col">{plural(found.jobs, "job")}</th>
              <th scope="col">{found.baseline.policy}</th>
              <th scope="col">{found.other.policy}</th>
            </tr>
          </thead>
          <tbody>
            {ROWS.map(([label, of, say]) => {
              const most = Math.max(of(found.baseline), of(found.other)) || 1;
              return (
                <tr key={label}>
                  <th scope="row">{label}</th>
                  {[found.baseline, found.other].map((outcome, at) => (
                    <td key={at}>
                      <span class={`measure ${at === 1 ? "is-other" : ""}`}>
                        <span style={{ width: `${(of(outcome) / most) * 100}%` }} />
                      </span>
                      {say(of(outcome))}
                    </td>
                  ))}
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      <PerJob found={found} />
    </div>
  );
}

function PerJob({ found }: { found: WhatIf }) {
  const jobs = Object.keys(found.baseline.jobs).filter((job) => job in found.other.jobs);
  if (jobs.length === 0) return null;
  return (
    <details>
      <summary>Each job</summary>
      <div class="table-box">
        <table class="compare">
          <tbody>
            {jobs.slice(0, 200).map((job) => (
              <tr key={job}>
                <th scope="row">{job}</th>
                <td>{duration(found.baseline.jobs[job])}</td>
                <td>{duration(found.other.jobs[job])}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}
