import { expect, test } from "vitest";
import type { JobDetails, JobState } from "../../src/api/types";
import { hasEnded, isActive, sameIntent } from "../../src/lib/job-state";

const STATES: JobState[] = ["queued", "starting", "running", "pausing", "paused", "cancelling", "finished", "failed", "cancelled"];
const job = (fields: Partial<JobDetails>) => ({ wish: null, pinned: false, state: "running", version: 1, ...fields }) as JobDetails;

test("three states are final, and no final state has processes", () => {
  expect(STATES.filter(hasEnded)).toEqual(["finished", "failed", "cancelled"]);
  expect(STATES.filter(isActive)).toEqual(["starting", "running", "pausing", "cancelling"]);
});

test("progress alone changes no intent", () => {
  expect(sameIntent(job({ state: "starting" }), job({ state: "running", version: 9, workers: 3 }))).toBe(true);
  expect(sameIntent(job({ state: "pausing" }), job({ state: "paused" }))).toBe(true);
});

test.each<[string, Partial<JobDetails>]>([
  ["another size was requested", { wish: 3 }],
  ["it was pinned", { pinned: true }],
  ["it was paused", { state: "pausing" }],
  ["it ended", { state: "finished" }],
])("%s: the intent differs", (_, fields) => {
  expect(sameIntent(job({}), job(fields))).toBe(false);
});
