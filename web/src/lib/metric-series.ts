/** A job's metrics in columns, extended while it trains. */

import type { Series } from "../api/types";

/** Above this many points, every second point of the older half is dropped: memory and drawing time stay bounded. */
export const MAX_POINTS = 40_000;

export type MetricPoints = Pick<Series, "step" | "t" | "workers" | "series">;
export type Column = (number | null)[];

export class MetricSeries {
  step: number[] = [];
  t: number[] = [];
  workers: number[] = [];
  private columns: Record<string, Column> = {};

  get length(): number {
    return this.step.length;
  }

  /** The metrics that have at least one value. */
  names(): string[] {
    return Object.keys(this.columns).filter((name) => this.columns[name]!.some((value) => value !== null));
  }

  /** One value or null for each point; empty for an unknown metric. */
  column(name: string): Column {
    return this.columns[name] ?? [];
  }

  clear(): void {
    this.step = [];
    this.t = [];
    this.workers = [];
    this.columns = {};
  }

  /** Appends points. A step below the last one means that the job resumed from a checkpoint: it replaces the later points. */
  append(points: MetricPoints): void {
    for (const name of Object.keys(points.series)) {
      this.columns[name] ??= new Array<number | null>(this.length).fill(null);
    }
    for (let row = 0; row < points.step.length; row++) this.appendRow(points, row);
    if (this.length > MAX_POINTS) this.thinOlderHalf();
  }

  private appendRow(points: MetricPoints, row: number): void {
    const step = points.step[row]!;
    if (step < (this.step.at(-1) ?? Number.NEGATIVE_INFINITY)) this.truncateAt(step);
    const repeated = this.step.at(-1) === step;
    if (!repeated) {
      this.step.push(step);
      this.t.push(points.t[row]!);
      this.workers.push(points.workers[row]!);
    }
    for (const [name, column] of Object.entries(this.columns)) {
      const value = points.series[name]?.[row] ?? null;
      if (!repeated) column.push(value);
      else if (value !== null) column[column.length - 1] = value;
    }
  }

  private truncateAt(step: number): void {
    let length = this.length;
    while (length > 0 && this.step[length - 1]! >= step) length--;
    for (const column of [this.step, this.t, this.workers, ...Object.values(this.columns)]) column.length = length;
  }

  private thinOlderHalf(): void {
    const half = this.length >> 1;
    const keep = (_: unknown, at: number) => at >= half || at % 2 === 0;
    this.step = this.step.filter(keep);
    this.t = this.t.filter(keep);
    this.workers = this.workers.filter(keep);
    for (const name of Object.keys(this.columns)) this.columns[name] = this.columns[name]!.filter(keep);
  }
}
