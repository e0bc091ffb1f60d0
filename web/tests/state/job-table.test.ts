import { effect } from "@preact/signals";
import { expect, test } from "vitest";
import type { JobSummary } from "../../src/api/types";
import { JobTable } from "../../src/state/job-table";

const job = (id: string, version = 1, fields: Partial<JobSummary> = {}) => ({ id, version, ...fields }) as JobSummary;
const ids = (table: JobTable) => [...table.all()].map((row) => row.value.id);

test("a newer summary replaces the known one, an older one does not", () => {
  const table = new JobTable(10);
  table.update([job("a", 5, { workers: 1 })]);
  table.update([job("a", 6, { workers: 2 })]);
  table.update([job("a", 5, { workers: 1 })]);
  expect(table.get("a")!.value.workers).toBe(2);
  table.update([job("a", 6, { workers: 3 })]);
  expect(table.get("a")!.value.workers).toBe(3);
});

test("an update of a known job redraws its row and not the list", () => {
  const table = new JobTable(10);
  table.update([job("a"), job("b")]);
  const redrawn = { list: 0, a: 0, b: 0 };
  effect(() => {
    redrawn.list += table.membership.value >= 0 ? 1 : 0;
  });
  effect(() => {
    redrawn.a += table.get("a")!.value.version >= 0 ? 1 : 0;
  });
  effect(() => {
    redrawn.b += table.get("b")!.value.version >= 0 ? 1 : 0;
  });
  table.update([job("a", 2)]);
  expect(redrawn).toEqual({ list: 1, a: 2, b: 1 });
  table.update([job("c")]);
  expect(redrawn).toEqual({ list: 2, a: 2, b: 1 });
});

test("a removed job does not come back with an answer that was under way", () => {
  const table = new JobTable(10);
  table.update([job("a")]);
  table.remove("a");
  table.update([job("a", 9)]);
  expect([ids(table), table.isRemoved("a")]).toEqual([[], true]);
});

test("the table is bounded: the oldest jobs go first", () => {
  const table = new JobTable(3);
  table.update(["a", "b", "c", "d", "e"].map((id) => job(id)));
  expect(ids(table)).toEqual(["c", "d", "e"]);
});

test("clear forgets jobs and removals", () => {
  const table = new JobTable(10);
  table.update([job("a")]);
  table.remove("a");
  table.clear();
  table.update([job("a")]);
  expect(ids(table)).toEqual(["a"]);
});
