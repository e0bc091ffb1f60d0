import { describe, expect, test } from "vitest";
import { hasValues, lastValue, moveCursor, paddedRange, valueAt } from "../../src/lib/chart-data";

describe("values", () => {
  test("a point without a value shows the one before it", () => {
    expect(valueAt([1, null, null], 2)).toBe(1);
    expect(valueAt([null, null, 3], 1)).toBeNull();
  });

  test("a value far back is not shown", () => {
    const column = [7, ...new Array<null>(60).fill(null)];
    expect(valueAt(column, 50)).toBe(7);
    expect(valueAt(column, 51)).toBeNull();
  });

  test("the last value skips nulls", () => {
    expect(lastValue([1, 2, null])).toBe(2);
    expect(lastValue([null])).toBeNull();
    expect(lastValue([])).toBeNull();
  });

  test("zero is a value", () => {
    expect([lastValue([0]), hasValues([0])]).toEqual([0, true]);
  });

  test("hasValues counts values, not points", () => {
    expect([hasValues([null, undefined]), hasValues([null, 1, null], 2), hasValues([1, null, 2], 2)]).toEqual([false, false, true]);
  });
});

describe("paddedRange", () => {
  test("has a margin around the data", () => {
    expect(paddedRange(10, 20, false)).toEqual([9.3, 20.7]);
  });

  test("starts at zero for counts", () => {
    expect(paddedRange(10, 20, true)[0]).toBe(0);
    expect(paddedRange(-1, 1, true)[0]).toBeLessThan(-1);
  });

  test("is never empty", () => {
    for (const value of [0, 5, -5]) {
      const [low, high] = paddedRange(value, value, false);
      expect(low).toBeLessThan(high);
    }
    expect(paddedRange(null, null, false)).toEqual([0, 1]);
    expect(paddedRange(Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, false)).toEqual([0, 1]);
  });
});

describe("moveCursor", () => {
  test.each([
    ["ArrowLeft", 5, 10, 4],
    ["ArrowRight", 5, 10, 6],
    ["ArrowRight", 9, 10, 9],
    ["ArrowLeft", 0, 10, 0],
    ["ArrowRight", 0, 1000, 10],
    ["Home", 5, 10, 0],
    ["End", 5, 10, 9],
    ["x", 5, 10, null],
    ["End", 0, 0, null],
  ])("%s at %d of %d points moves to %j", (key, at, count, target) => {
    expect(moveCursor(key, at, count)).toBe(target);
  });
});
