/** The charts of a job: what it measured over its steps, and its workers and pauses over time. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Job, Sizes } from "../api/types";
import { pause } from "../lib/format";
import { now } from "../state/live";
import { useCurves } from "../state/job";
import { Chart, type Data, type Line } from "./chart";

/** Names that have a chart of their own above, or that count and do not measure. */
const PLACED = new Set(
  "loss samples_per_s goodput noise_scale batch steps_per_s progress remaining_s steps schema step epoch workers nodes slices parts skipped".split(" "),
);
const MOST_OTHERS = 8;
const CHARTS: readonly (readonly [string, readonly (Line & { name: string })[]])[] = [
  ["Loss", [{ name: "loss", label: "loss", colour: "--c1" }]],
  [
    "Throughput",
    [
      { name: "samples_per_s", label: "samples/s", colour: "--c2" },
      { name: "goodput", label: "goodput", colour: "--c3" },
    ],
  ],
  [
    "Noise scale and batch size",
    [
      { name: "noise_scale", label: "noise scale", colour: "--c4" },
      { name: "batch", label: "batch", colour: "--c5", side: "right", kind: "steps" },
    ],
  ],
];

export function Curves({ job, sizes }: { job: Job; sizes: Sizes | null }) {
  const [names, setNames] = useState<string[]>([]);
  const [x, setX] = useState<"step" | "time">("step");
  const [log, setLog] = useState(false);
  const plot = useCurves(job.id, (found) => setNames((old) => (old.join() === found.join() ? old : found)));
  const xs = () => (x === "step" ? plot.curves.step : plot.curves.t);
  const others = names.filter((name) => !PLACED.has(name)).slice(0, MOST_OTHERS);
  return (
    <section aria-label="curves">
      <div class="row head">
        <h2>Curves</h2>
        <span class="grow" />
        <div class="segments" role="group" aria-label="horizontal axis">
          {(["step", "time"] as const).map((one) => (
            <button type="button" key={one} aria-pressed={x === one} onClick={() => setX(one)}>
              by {one}
            </button>
          ))}
        </div>
        <label class="inline">
          <input type="checkbox" checked={log} onChange={(event) => setLog(event.currentTarget.checked)} /> log loss
        </label>
      </div>
      <div class="charts">
        {CHARTS.map(([title, lines]) => {
          const shown = lines.filter((one) => names.includes(one.name) || one === lines[0]);
          return (
            <Chart
              key={title}
              title={title}
              lines={shown.map(({ name: _, ...rest }) => rest)}
              x={x}
              log={log && title === "Loss"}
              together={job.id}
              changes={plot.changes}
              data={() => [xs(), ...shown.map((one) => filled(plot.curves.column(one.name), xs().length))]}
              empty={title.startsWith("Noise") ? "This job does not report its noise scale" : "No committed step yet"}
            />
          );
        })}
        <Workers job={job} sizes={sizes} />
        {others.map((name, at) => (
          <Chart
            key={name}
            title={name}
            lines={[{ label: name, colour: `--c${(at % 5) + 1}` }]}
            x={x}
            together={job.id}
            changes={plot.changes}
            data={() => [xs(), filled(plot.curves.column(name), xs().length)]}
          />
        ))}
      </div>
    </section>
  );
}

function filled(column: (number | null)[], length: number): (number | null)[] {
  return column.length === length ? column : new Array<number | null>(length).fill(null);
}

const LINES: Line[] = [
  { label: "workers", colour: "--c2", kind: "steps" },
  { label: "pause", colour: "--c1", side: "right", kind: "stems", read: pause },
];

/** The number of workers as steps and every change's pause, up to now. */
function Workers({ job, sizes }: { job: Job; sizes: Sizes | null }) {
  const listeners = useRef(new Set<() => void>());
  const ended = job.ended_at;
  const data = useMemo(() => () => workersOverTime(sizes, ended), [sizes, ended]);
  useEffect(() => {
    const tell = () => listeners.current.forEach((call) => call());
    tell();
    if (ended !== null) return;
    const timer = setInterval(tell, 1000);
    return () => clearInterval(timer);
  }, [sizes, ended]);
  const changes = (call: () => void) => {
    listeners.current.add(call);
    return () => void listeners.current.delete(call);
  };
  return <Chart title="Workers and pauses" lines={LINES} x="time" changes={changes} data={data} empty="It has not started yet" />;
}

function workersOverTime(sizes: Sizes | null, ended: number | null): Data {
  const items = [...(sizes?.items ?? [])].sort((a, b) => a.t - b.t);
  const t = items.map((one) => one.t);
  const workers: (number | null)[] = items.map((one) => one.workers);
  const pauses: (number | null)[] = items.map((one) => one.pause_ms);
  const end = ended ?? now();
  if (items.length > 0 && end > t.at(-1)!) {
    t.push(end);
    workers.push(items.at(-1)!.workers);
    pauses.push(null);
  }
  return [t, workers, pauses];
}
