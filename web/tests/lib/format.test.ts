import { describe, expect, test } from "vitest";
import {
  formatAge,
  formatDuration,
  formatInteger,
  formatMilliseconds,
  formatNumber,
  formatPercent,
  formatTick,
  formatTime,
  formatTimeTick,
  MISSING,
  pluralize,
} from "../../src/lib/format";

const NOON = Date.UTC(2026, 10, 18, 12) / 1000;

test("a missing value is a dash everywhere", () => {
  const formats = [formatNumber, formatInteger, formatPercent, formatDuration, formatMilliseconds];
  for (const format of formats) expect([format(null), format(undefined)]).toEqual([MISSING, MISSING]);
  expect([formatNumber(Number.NaN), formatDuration(Number.POSITIVE_INFINITY)]).toEqual([MISSING, MISSING]);
  expect([formatTime(null, 0), formatAge(null, 0)]).toEqual([MISSING, MISSING]);
});

test.each([
  [0, "0"],
  [0.123_456, "0.123"],
  [-2.5, "-2.5"],
  [999.4, "999"],
  [999.9, "1,000"],
  [12_345.6, "12,346"],
  [2_500_000, "2.5M"],
  [0.000_12, "1.20e-4"],
  [1e15, "1.00e+15"],
])("formatNumber(%d) is %s", (value, text) => {
  expect(formatNumber(value)).toBe(text);
});

test("formatNumber rounds to as many digits as asked for", () => {
  expect(formatNumber(2.345_67, 4)).toBe("2.346");
});

test.each([
  [2.5, 0.5, "2.5"],
  [2, 0.5, "2.0"],
  [2.425, 0.025, "2.425"],
  [2.4, 0.025, "2.400"],
  [20, 10, "20"],
  [1500, 500, "1,500"],
])("the tick %d on an axis with stride %d is %s", (value, stride, text) => {
  expect(formatTick(value, stride)).toBe(text);
});

test("neighbouring ticks never have the same label", () => {
  for (const stride of [0.001, 0.0025, 0.02, 0.25, 1, 2.5, 50]) {
    const labels = Array.from({ length: 10 }, (_, at) => formatTick(2 + at * stride, stride));
    expect(new Set(labels).size).toBe(10);
  }
});

test.each([
  [0, "0%"],
  [0.001, "0.1%"],
  [0.0995, "9.9%"],
  [0.29, "29%"],
  [0.9999, "99%"],
  [1, "100%"],
])("formatPercent(%d) is %s: 100%% only when everything is done", (fraction, text) => {
  expect(formatPercent(fraction)).toBe(text);
});

test.each([
  [-1, "now"],
  [0.04, "0 s"],
  [1.25, "1.3 s"],
  [9.97, "10 s"],
  [59.4, "59 s"],
  [59.7, "1 min 0 s"],
  [119.7, "2 min 0 s"],
  [599.4, "9 min 59 s"],
  [599.9, "10 min"],
  [3599, "1 h 0 min"],
  [5400, "1 h 30 min"],
  [86_399, "1 d 0 h"],
  [47.9 * 3600, "2 d 0 h"],
  [50 * 3600, "2 d 2 h"],
])("formatDuration(%d) is %s", (seconds, text) => {
  expect(formatDuration(seconds)).toBe(text);
});

test("pauses below a second are in milliseconds", () => {
  expect([formatMilliseconds(3.14), formatMilliseconds(999), formatMilliseconds(1500)]).toEqual(["3.1 ms", "1,000 ms", "1.5 s"]);
});

test("a time has its date only if it is half a day away", () => {
  expect(formatTime(NOON, NOON)).toMatch(/^12:00:00/);
  expect(formatTime(NOON, NOON + 13 * 3600)).toMatch(/18.*12:00|12:00.*18/);
});

test("midnight is 00:00, not 24:00", () => {
  expect(formatTime(NOON + 12 * 3600, NOON + 12 * 3600)).toMatch(/^00:00:00/);
});

test("time ticks have seconds below a minute, and dates from a day on", () => {
  expect([formatTimeTick(NOON, 10), formatTimeTick(NOON, 60)]).toEqual(["12:00:00", "12:00"]);
  expect(formatTimeTick(NOON, 86_400)).toMatch(/18/);
});

test.each([
  [2, "just now"],
  [42, "42 s ago"],
  [185, "3 min ago"],
  [3600, "1 h 0 min ago"],
])("an event %d s old happened %s", (age, text) => {
  expect(formatAge(NOON, NOON + age)).toBe(text);
});

describe("pluralize", () => {
  test("adds an s unless the count is 1", () => {
    expect([pluralize(0, "slot"), pluralize(1, "slot"), pluralize(2000, "slot")]).toEqual(["0 slots", "1 slot", "2,000 slots"]);
  });
});
