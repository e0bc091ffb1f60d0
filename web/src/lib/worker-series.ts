import type { Size } from "../api/types";

export type WorkerSeries = [t: number[], workers: (number | null)[], pausesMs: (number | null)[]];

/** The workers and the pause of every resize, sorted by time; the last size is extended to `end`. */
export function workersOverTime(resizes: readonly Size[], end: number): WorkerSeries {
  const sorted = [...resizes].sort((a, b) => a.t - b.t);
  const series: WorkerSeries = [
    sorted.map((resize) => resize.t),
    sorted.map((resize) => resize.workers),
    sorted.map((resize) => resize.pause_ms),
  ];
  const last = sorted.at(-1);
  if (last !== undefined && end > last.t) {
    const [t, workers, pausesMs] = series;
    t.push(end);
    workers.push(last.workers);
    pausesMs.push(null);
  }
  return series;
}
