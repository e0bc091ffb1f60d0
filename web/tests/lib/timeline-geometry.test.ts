import { expect, test } from "vitest";
import { blockAt, HEADER_HEIGHT, layoutTimeline, TimeScale } from "../../src/lib/timeline-geometry";

const bars = [
  { job: "a", name: "a", node: "n1", slots: 2, start: 100, end: 150 },
  { job: "b", name: "b", node: "n2", slots: 1, start: 120, end: null },
];
const nodes = [
  { name: "n1", slots: 2 },
  { name: "n2", slots: 2 },
];
const layout = layoutTimeline(bars, nodes);
const scale = new TimeScale(layout, 1000, 100, 200);

test("nodes have one lane per slot, below each other", () => {
  expect(layout.nodes.map(({ name, lanes, blocks }) => [name, lanes, blocks.length])).toEqual([
    ["n1", 2, 2],
    ["n2", 2, 1],
  ]);
  expect(layout.nodes[0]!.top).toBe(HEADER_HEIGHT);
  expect(layout.nodes[1]!.top).toBeGreaterThan(HEADER_HEIGHT + 2 * layout.laneHeight);
  expect(layout.height).toBeGreaterThan(layout.nodes[1]!.top + 2 * layout.laneHeight);
});

test("many slots have thin lanes, but never invisible ones", () => {
  expect(layoutTimeline([], [{ name: "n", slots: 60 }]).laneHeight).toBe(7);
  expect(layoutTimeline([], [{ name: "n", slots: 5000 }]).laneHeight).toBe(4);
});

test("without nodes, those of the bars are shown", () => {
  expect(layoutTimeline(bars, []).nodes.map(({ name, lanes }) => [name, lanes])).toEqual([
    ["n1", 2],
    ["n2", 1],
  ]);
});

test("times and pixels are mapped to each other", () => {
  expect(scale.x(100)).toBe(layout.left);
  expect(scale.x(200)).toBe(990);
  expect(scale.t(scale.x(142))).toBeCloseTo(142);
});

test("ticks are whole strides of local time inside the window", () => {
  expect(scale.tickStride()).toBe(10);
  expect(scale.ticks(0)).toEqual([100, 110, 120, 130, 140, 150, 160, 170, 180, 190, 200]);
  const hours = new TimeScale(layout, 1000, 6 * 3600, 100_000);
  const zoneS = -1800;
  expect(hours.tickStride()).toBe(1800);
  for (const t of hours.ticks(zoneS)) expect((t - zoneS) % 1800).toBe(0);
});

test("a place in the picture finds its block, and nothing beside it", () => {
  const [n1, n2] = layout.nodes;
  expect(blockAt(layout, scale, scale.x(125), n1!.top + 1)?.job).toBe("a");
  expect(blockAt(layout, scale, scale.x(125), n2!.top + 1)?.job).toBe("b");
  expect(blockAt(layout, scale, scale.x(199), n2!.top + 1)?.job).toBe("b");
  expect(blockAt(layout, scale, scale.x(110), n2!.top + 1)).toBeNull();
  expect(blockAt(layout, scale, scale.x(160), n1!.top + 1)).toBeNull();
  expect(blockAt(layout, scale, scale.x(125), n2!.top + layout.laneHeight + 1)).toBeNull();
  expect(blockAt(layout, scale, 3, n1!.top + 1)).toBeNull();
  expect(blockAt(layout, scale, scale.x(125), 2)).toBeNull();
});
