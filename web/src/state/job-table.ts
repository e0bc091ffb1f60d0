/** The job summaries that the page knows. One signal per job, so that a change redraws one row and not the list. */

import { batch, type Signal, signal } from "@preact/signals";
import type { JobSummary } from "../api/types";

export class JobTable {
  /** Incremented when a job is added or removed. */
  readonly membership = signal(0);
  private readonly jobs = new Map<string, Signal<JobSummary>>();
  private readonly removed = new Set<string>();

  constructor(private readonly maxJobs: number) {}

  get(id: string): Signal<JobSummary> | undefined {
    return this.jobs.get(id);
  }

  all(): Iterable<Signal<JobSummary>> {
    return this.jobs.values();
  }

  isRemoved(id: string): boolean {
    return this.removed.has(id);
  }

  /** Adds or updates jobs. Ignores a summary that is older than the known one, and jobs that were removed. */
  update(summaries: readonly JobSummary[]): void {
    batch(() => {
      let added = false;
      for (const summary of summaries) added = this.updateOne(summary) || added;
      for (const oldest of this.jobs.keys()) {
        if (this.jobs.size <= this.maxJobs) break;
        this.jobs.delete(oldest);
      }
      if (added) this.membership.value++;
    });
  }

  private updateOne(summary: JobSummary): boolean {
    const job = this.jobs.get(summary.id);
    if (job) {
      if (summary.version >= job.value.version) job.value = summary;
      return false;
    }
    if (this.removed.has(summary.id)) return false;
    this.jobs.set(summary.id, signal(summary));
    return true;
  }

  remove(id: string): void {
    if (this.removed.size > this.maxJobs) this.removed.clear();
    this.removed.add(id);
    if (this.jobs.delete(id)) this.membership.value++;
  }

  clear(): void {
    this.jobs.clear();
    this.removed.clear();
    this.membership.value++;
  }
}
