/** A job's curves in columns, appended to while it trains. */

import type { Series } from "../api/types";

/** Above this many points the older half is thinned: memory and drawing time stay bounded however long a job runs. */
export const MOST_POINTS = 40_000;

export type Part = Pick<Series, "step" | "t" | "workers" | "series">;
type Column = (number | null)[];

export class Curves {
  step: number[] = [];
  t: number[] = [];
  workers: number[] = [];
  series: Record<string, Column> = {};

  get length(): number {
    return this.step.length;
  }

  names(): string[] {
    return Object.keys(this.series).filter((name) => this.series[name]!.some((value) => value !== null));
  }

  column(name: string): Column {
    return this.series[name] ?? [];
  }

  clear(): void {
    this.step = [];
    this.t = [];
    this.workers = [];
    this.series = {};
  }

  /** A smaller step than the last one is a resume from a checkpoint: it replaces what was above. */
  append(part: Part): void {
    for (const name of Object.keys(part.series)) {
      this.series[name] ??= new Array<number | null>(this.length).fill(null);
    }
    for (let row = 0; row < part.step.length; row++) this.add(part, row);
    if (this.length > MOST_POINTS) this.thin();
  }

  private add(part: Part, row: number): void {
    const step = part.step[row]!;
    const last = this.step.at(-1);
    if (last !== undefined && step < last) this.cut(step);
    const merged = this.step.at(-1) === step;
    if (!merged) {
      this.step.push(step);
      this.t.push(part.t[row]!);
      this.workers.push(part.workers[row]!);
    }
    for (const [name, column] of Object.entries(this.series)) {
      const value = part.series[name]?.[row] ?? null;
      if (!merged) column.push(value);
      else if (value !== null) column[column.length - 1] = value;
    }
  }

  /** Forgets the points from this step on. */
  private cut(step: number): void {
    let length = this.length;
    while (length > 0 && this.step[length - 1]! >= step) length--;
    for (const column of [this.step, this.t, this.workers, ...Object.values(this.series)]) column.length = length;
  }

  private thin(): void {
    const half = this.length >> 1;
    const keep = (_: unknown, at: number) => at >= half || at % 2 === 0;
    this.step = this.step.filter(keep);
    this.t = this.t.filter(keep);
    this.workers = this.workers.filter(keep);
    for (const name of Object.keys(this.series)) this.series[name] = this.series[name]!.filter(keep);
  }
}
