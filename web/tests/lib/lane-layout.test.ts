import { expect, test } from "vitest";
import type { Bar } from "../../src/api/types";
import { assignLanes } from "../../src/lib/lane-layout";

const bar = (job: string, slots: number, start: number, end: number | null = null): Bar => ({
  job,
  name: job,
  node: "n",
  slots,
  start,
  end,
});

const lanesAt = (bars: Bar[], slots: number, t: number) => {
  const lanes: (string | null)[] = new Array(slots).fill(null);
  for (const block of assignLanes(bars, slots)) {
    if (block.start > t || (block.end ?? Number.POSITIVE_INFINITY) <= t) continue;
    expect(lanes[block.lane], "two blocks on one lane").toBeNull();
    lanes[block.lane] = block.job;
  }
  return lanes;
};

test("a job has one block per slot", () => {
  const blocks = assignLanes([bar("a", 3, 0, 10)], 4);
  expect(blocks.map(({ lane, start, end }) => [lane, start, end])).toEqual([
    [0, 0, 10],
    [1, 0, 10],
    [2, 0, 10],
  ]);
});

test("a job that grows keeps its lane: the block is not cut", () => {
  const blocks = assignLanes([bar("a", 1, 0, 5), bar("a", 2, 5)], 4);
  expect(blocks.map(({ lane, start, end }) => [lane, start, end])).toEqual([
    [0, 0, null],
    [1, 5, null],
  ]);
});

test("a job that shrinks keeps its lowest lane", () => {
  const bars = [bar("a", 2, 0, 5), bar("a", 1, 5)];
  expect(lanesAt(bars, 2, 1)).toEqual(["a", "a"]);
  expect(lanesAt(bars, 2, 6)).toEqual(["a", null]);
});

test("a job grows next to its own lane, not on the first free one", () => {
  const bars = [bar("a", 1, 0, 5), bar("b", 1, 1), bar("b", 1, 6)];
  expect(lanesAt(bars, 4, 2)).toEqual(["a", "b", null, null]);
  expect(lanesAt(bars, 4, 7)).toEqual(["b", "b", null, null]);
});

test("during a handover the newer job is shown, and never more blocks than slots", () => {
  const bars = [bar("old", 2, 0, 7), bar("new", 1, 5)];
  expect(lanesAt(bars, 2, 4)).toEqual(["old", "old"]);
  expect(lanesAt(bars, 2, 6)).toEqual(["old", "new"]);
  expect(lanesAt(bars, 2, 8)).toEqual([null, "new"]);
});

test("a bar without a duration has no block", () => {
  expect(assignLanes([bar("a", 1, 3, 3)], 1)).toEqual([]);
});

test("blocks are sorted by start", () => {
  const starts = assignLanes([bar("b", 1, 4), bar("a", 1, 0, 9), bar("c", 1, 2)], 3).map((block) => block.start);
  expect(starts).toEqual([0, 2, 4]);
});
