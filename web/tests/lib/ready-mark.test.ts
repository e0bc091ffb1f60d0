import { expect, test, vi } from "vitest";
import { markReady } from "../../src/lib/ready-mark";

test("the mark is set once, after the frame was drawn", async () => {
  const frames: (() => void)[] = [];
  vi.stubGlobal("requestAnimationFrame", (callback: () => void) => frames.push(callback));
  markReady();
  markReady();
  expect(performance.getEntriesByName("stretto-ready")).toEqual([]);
  for (const frame of frames) frame();
  await vi.waitFor(() => expect(performance.getEntriesByName("stretto-ready").length).toBe(1));
});
