/** Groups of job states. */

import type { JobDetails, JobState } from "../api/types";

const ENDED: readonly JobState[] = ["finished", "failed", "cancelled"];
const ACTIVE: readonly JobState[] = ["starting", "running", "pausing", "cancelling"];
const PAUSED: readonly JobState[] = ["paused", "pausing"];

export function hasEnded(state: JobState): boolean {
  return ENDED.includes(state);
}

/** Whether the job has processes. */
export function isActive(state: JobState): boolean {
  return ACTIVE.includes(state);
}

/** Whether nobody scaled, pinned, paused, resumed or ended the job between these two versions. */
export function sameIntent(shown: JobDetails, current: JobDetails): boolean {
  return (
    shown.wish === current.wish &&
    shown.pinned === current.pinned &&
    hasEnded(shown.state) === hasEnded(current.state) &&
    PAUSED.includes(shown.state) === PAUSED.includes(current.state)
  );
}
