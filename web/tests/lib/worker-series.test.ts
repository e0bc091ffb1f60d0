import { expect, test } from "vitest";
import { workersOverTime } from "../../src/lib/worker-series";

const resize = (t: number, workers: number, pauseMs: number | null) => ({ t, workers, pause_ms: pauseMs, step: 0, cause: "join" });

test("resizes are sorted by time and the last size goes on to the end", () => {
  expect(workersOverTime([resize(20, 2, 30), resize(10, 1, null)], 25)).toEqual([
    [10, 20, 25],
    [1, 2, 2],
    [null, 30, null],
  ]);
});

test("an end before the last resize (a clock that is behind) adds nothing", () => {
  expect(workersOverTime([resize(10, 1, null)], 9)).toEqual([[10], [1], [null]]);
});

test("a job that has not started has no points", () => {
  expect(workersOverTime([], 9)).toEqual([[], [], []]);
});
