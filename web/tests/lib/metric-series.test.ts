import { expect, test } from "vitest";
import { MAX_POINTS, type MetricPoints, MetricSeries } from "../../src/lib/metric-series";

const points = (steps: number[], series: Record<string, (number | null)[]>): MetricPoints => ({
  step: steps,
  t: steps.map((step) => 100 + step),
  workers: steps.map(() => 1),
  series,
});

test("points are appended, and a metric that comes later is null before", () => {
  const metrics = new MetricSeries();
  metrics.append(points([0, 1], { loss: [2, 1] }));
  metrics.append(points([2], { loss: [0.5], noise: [7] }));
  expect(metrics.step).toEqual([0, 1, 2]);
  expect(metrics.t).toEqual([100, 101, 102]);
  expect(metrics.column("loss")).toEqual([2, 1, 0.5]);
  expect(metrics.column("noise")).toEqual([null, null, 7]);
  expect(metrics.column("unknown")).toEqual([]);
});

test("a metric that is missing in a part is null there", () => {
  const metrics = new MetricSeries();
  metrics.append(points([0], { loss: [2] }));
  metrics.append(points([1], {}));
  expect(metrics.column("loss")).toEqual([2, null]);
});

test("a repeated step adds its values to the point and no point", () => {
  const metrics = new MetricSeries();
  metrics.append(points([0, 1], { loss: [2, 1], noise: [null, null] }));
  metrics.append(points([1], { loss: [null], noise: [7] }));
  expect(metrics.step).toEqual([0, 1]);
  expect(metrics.column("loss")).toEqual([2, 1]);
  expect(metrics.column("noise")).toEqual([null, 7]);
});

test("a resume from a checkpoint replaces the steps above it", () => {
  const metrics = new MetricSeries();
  metrics.append(points([0, 1, 2, 3], { loss: [4, 3, 2, 1] }));
  metrics.append(points([2, 3], { loss: [20, 10] }));
  expect(metrics.step).toEqual([0, 1, 2, 3]);
  expect(metrics.column("loss")).toEqual([4, 3, 20, 10]);
});

test("only metrics with a value have a name", () => {
  const metrics = new MetricSeries();
  metrics.append(points([0], { loss: [1], noise: [null] }));
  expect(metrics.names()).toEqual(["loss"]);
});

test("clear drops points and metrics", () => {
  const metrics = new MetricSeries();
  metrics.append(points([5], { loss: [1] }));
  metrics.clear();
  metrics.append(points([0], { noise: [2] }));
  expect([metrics.step, metrics.names()]).toEqual([[0], ["noise"]]);
});

test("above the bound the older half is thinned: the first and the newest points stay, in order", () => {
  const metrics = new MetricSeries();
  const steps = Array.from({ length: MAX_POINTS + 2 }, (_, at) => at);
  metrics.append(points(steps, { loss: steps }));
  expect(metrics.length).toBeLessThanOrEqual(MAX_POINTS);
  expect([metrics.step[0], metrics.step.at(-1)]).toEqual([0, MAX_POINTS + 1]);
  expect(metrics.step.slice(-1000)).toEqual(steps.slice(-1000));
  expect(metrics.column("loss")).toEqual(metrics.step);
  expect(metrics.t.length).toBe(metrics.length);
});

test("at the bound nothing is thinned", () => {
  const metrics = new MetricSeries();
  const steps = Array.from({ length: MAX_POINTS }, (_, at) => at);
  metrics.append(points(steps, { loss: steps }));
  expect(metrics.length).toBe(MAX_POINTS);
});
