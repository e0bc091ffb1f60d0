/** The charts of a job: its metrics by step or time, and its workers and pauses by time. */

import { useEffect, useMemo, useState } from "preact/hooks";
import type { JobDetails, Sizes } from "../api/types";
import { formatMilliseconds } from "../lib/format";
import type { Column } from "../lib/metric-series";
import { workersOverTime } from "../lib/worker-series";
import { useMetrics } from "../state/job-data";
import { serverNow } from "../state/server-state";
import { Chart, type ChartLine } from "./chart";

/** Metrics that have a chart of their own, and counters that need none. */
const NOT_LISTED = new Set([
  ...["loss", "samples_per_s", "goodput", "noise_scale", "batch"],
  ...[
    "steps_per_s",
    "progress",
    "remaining_s",
    "steps",
    "schema",
    "step",
    "epoch",
    "workers",
    "nodes",
    "slices",
    "parts",
    "skipped",
  ],
]);
const MAX_OTHER_CHARTS = 8;

interface ChartSpec {
  title: string;
  empty: string;
  lines: (ChartLine & { metric: string })[];
}

const CHARTS: readonly ChartSpec[] = [
  { title: "Loss", empty: "No committed step yet", lines: [{ metric: "loss", label: "loss", colour: "--c1" }] },
  {
    title: "Throughput",
    empty: "No committed step yet",
    lines: [
      { metric: "samples_per_s", label: "samples/s", colour: "--c2" },
      { metric: "goodput", label: "goodput", colour: "--c3" },
    ],
  },
  {
    title: "Noise scale and batch size",
    empty: "This job does not report its noise scale",
    lines: [
      { metric: "noise_scale", label: "noise scale", colour: "--c4" },
      { metric: "batch", label: "batch", colour: "--c5", side: "right", kind: "steps" },
    ],
  },
];

export function MetricCharts({ job, sizes }: { job: JobDetails; sizes: Sizes | null }) {
  const [names, setNames] = useState<string[]>([]);
  const [x, setX] = useState<"step" | "time">("step");
  const [logScale, setLogScale] = useState(false);
  const source = useMetrics(job.id, (current) => setNames((old) => (old.join() === current.join() ? old : current)));
  const xs = () => (x === "step" ? source.series.step : source.series.t);
  const column = (name: string) => fitColumn(source.series.column(name), source.series.length);
  const shared = { x, syncKey: job.id, subscribe: source.subscribe };
  const others = names.filter((name) => !NOT_LISTED.has(name)).slice(0, MAX_OTHER_CHARTS);
  return (
    <section aria-label="metrics">
      <div class="row title-row">
        <h2>Metrics</h2>
        <span class="spacer" />
        <div class="segments" role="group" aria-label="horizontal axis">
          {(["step", "time"] as const).map((axis) => (
            <button type="button" key={axis} aria-pressed={x === axis} onClick={() => setX(axis)}>
              by {axis}
            </button>
          ))}
        </div>
        <label class="inline">
          <input type="checkbox" checked={logScale} onChange={(event) => setLogScale(event.currentTarget.checked)} /> log-scale loss
        </label>
      </div>
      <div class="charts">
        {CHARTS.map(({ title, empty, lines }) => {
          const shown = lines.filter((line, at) => at === 0 || names.includes(line.metric));
          return (
            <Chart
              {...shared}
              key={title}
              title={title}
              lines={shown.map(({ metric: _, ...line }) => line)}
              logScale={logScale && title === "Loss"}
              data={() => [xs(), ...shown.map((line) => column(line.metric))]}
              empty={empty}
            />
          );
        })}
        <WorkersChart job={job} sizes={sizes} />
        {others.map((name, at) => (
          <Chart
            {...shared}
            key={name}
            title={name}
            lines={[{ label: name, colour: `--c${(at % 5) + 1}` }]}
            data={() => [xs(), column(name)]}
          />
        ))}
      </div>
    </section>
  );
}

function fitColumn(column: Column, length: number): Column {
  return column.length === length ? column : new Array<number | null>(length).fill(null);
}

const WORKER_LINES: ChartLine[] = [
  { label: "workers", colour: "--c2", kind: "steps" },
  { label: "pause", colour: "--c1", side: "right", kind: "stems", format: formatMilliseconds },
];

/** The number of workers as steps and the pause of every resize as stems, up to now. */
function WorkersChart({ job, sizes }: { job: JobDetails; sizes: Sizes | null }) {
  const listeners = useMemo(() => new Set<() => void>(), []);
  const end = job.ended_at;
  useEffect(() => {
    const notify = () => {
      for (const callback of listeners) callback();
    };
    notify();
    if (end !== null) return;
    const timer = setInterval(notify, 1000);
    return () => clearInterval(timer);
  }, [sizes, end, listeners]);
  const subscribe = (callback: () => void) => {
    listeners.add(callback);
    return () => listeners.delete(callback);
  };
  const data = () => workersOverTime(sizes?.items ?? [], end ?? serverNow());
  return (
    <Chart title="Workers and pauses" lines={WORKER_LINES} x="time" subscribe={subscribe} data={data} empty="Not started yet" />
  );
}
