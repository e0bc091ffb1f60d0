import { expect, test } from "vitest";
import { jobColour } from "../../src/lib/colours";

test("a job keeps its colour", () => {
  const first = jobColour("keeps");
  for (let at = 0; at < 50; at++) jobColour(`between-${at}`);
  expect(jobColour("keeps")).toBe(first);
});

test("the twelve jobs that were shown last have different colours", () => {
  for (let round = 0; round < 20; round++) {
    const colours = Array.from({ length: 12 }, (_, at) => jobColour(`round-${round}-${at}`));
    expect(new Set(colours).size).toBe(12);
  }
});

test("other tenants have a colour that no job has", () => {
  const colours = Array.from({ length: 100 }, (_, at) => jobColour(`any-${at}`));
  expect(colours).not.toContain(jobColour("other"));
});
