/** uPlot's options for a chart: axes, scales and the style of its lines. */

import uPlot from "uplot";
import { hasValues, paddedRange } from "../lib/chart-data";
import { cssVariable } from "../lib/colours";
import { formatNumber, formatTick, formatTimeTick } from "../lib/format";

export interface ChartLine {
  label: string;
  /** A custom property of the style sheet. */
  colour: string;
  /** Lines with another unit use the axis on the right. */
  side?: "left" | "right";
  kind?: "line" | "steps" | "stems";
  format?: (value: number) => string;
}

export interface PlotSpec {
  lines: ChartLine[];
  x: "step" | "time";
  logScale: boolean;
  /** Charts with the same key move their cursors together. */
  syncKey: string | undefined;
}

export const PLOT_HEIGHT = 190;
const LINE_WIDTH = 1.5;
const STEM_WIDTH = 2;
/** Points per pixel above which a line is drawn one pixel wide. */
const DENSE = 2;

const sideOf = (line: ChartLine) => line.side ?? "left";

export function plotOptions(spec: PlotSpec, width: number): uPlot.Options {
  const { lines, x, logScale, syncKey } = spec;
  const hasRightAxis = lines.some((line) => sideOf(line) === "right");
  const fromZero = lines.some((line) => line.kind === "steps");
  return {
    width: Math.max(160, Math.floor(width)),
    height: PLOT_HEIGHT,
    padding: [10, hasRightAxis ? 0 : 12, 0, 0],
    legend: { show: false },
    cursor: {
      drag: { x: true, y: false, dist: 6 },
      points: { size: 7 },
      ...(syncKey ? { sync: { key: syncKey, scales: ["x", null] } } : {}),
    },
    scales: {
      x: { time: x === "time" },
      left: logScale ? { distr: 3 } : { distr: 1, range: (_, low, high) => paddedRange(low, high, fromZero) },
      right: { range: (_, low, high) => paddedRange(low, high, true) },
    },
    axes: [xAxis(x), yAxis("left", spec), ...(hasRightAxis ? [yAxis("right", spec)] : [])],
    series: [{}, ...lines.map(seriesOptions)],
  };
}

function baseAxis(): uPlot.Axis {
  return {
    stroke: () => cssVariable("--muted"),
    grid: { stroke: () => cssVariable("--grid"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
}

function xAxis(x: "step" | "time"): uPlot.Axis {
  return { ...baseAxis(), size: 30, space: x === "step" ? 50 : 64, values: x === "step" ? stepTicks : timeTicks };
}

function stepTicks(_: uPlot, splits: number[]): string[] {
  return splits.map((step) => (Number.isInteger(step) ? formatNumber(step) : ""));
}

function timeTicks(_: uPlot, splits: number[], __: number, ___: number, stride: number): string[] {
  return splits.map((t) => (stride < 1 && !Number.isInteger(t) ? "" : formatTimeTick(t, stride)));
}

function yAxis(side: "left" | "right", { lines, logScale }: PlotSpec): uPlot.Axis {
  const counts = lines.some((line) => line.kind === "steps" && sideOf(line) === side);
  const axis = baseAxis();
  const label = (value: number, stride: number): string => {
    if (counts) return Number.isInteger(value) ? formatNumber(value) : "";
    return logScale && side === "left" ? formatNumber(value) : formatTick(value, stride);
  };
  return {
    ...axis,
    scale: side,
    side: side === "left" ? 3 : 1,
    size: 52,
    ...(side === "left" ? {} : { grid: { show: false } }),
    // An axis whose lines have no values shows no numbers.
    values: (plot, splits, _, __, stride) => {
      const labelled = sideHasValues(plot, side);
      return splits.map((value: number | null) => (value === null || !labelled ? "" : label(value, stride)));
    },
  };
}

function sideHasValues(plot: uPlot, side: string): boolean {
  return plot.series.some((series, at) => at > 0 && series.scale === side && hasValues(plot.data[at] ?? []));
}

function seriesOptions(line: ChartLine): uPlot.Series {
  const kind = line.kind ?? "line";
  const colour = () => cssVariable(line.colour);
  return {
    label: line.label,
    scale: sideOf(line),
    stroke: colour,
    width: kind === "stems" ? STEM_WIDTH : LINE_WIDTH,
    spanGaps: kind === "line",
    // A single value makes no line: without a point it would be invisible.
    points: { show: kind === "stems" ? true : (plot, at) => !hasValues(plot.data[at] ?? [], 2), size: 6, fill: colour },
    ...(kind === "steps"
      ? { paths: uPlot.paths.stepped!({ align: 1 }), fill: () => `color-mix(in srgb, ${colour()} 14%, transparent)` }
      : {}),
    ...(kind === "stems" ? { paths: uPlot.paths.bars!({ size: [0.01, 3, 2] }) } : {}),
  };
}

/**
 * Draws lines one pixel wide where they have several points per pixel. A wider stroke goes up and down within each pixel, and
 * a browser without a GPU fills the outline of all of it: tens of milliseconds. A one-pixel stroke has no outline to fill.
 */
export function thinDenseLines(plot: uPlot, lines: ChartLine[]): void {
  const [from, to] = plot.series[0]!.idxs ?? [0, 0];
  const dense = to - from > DENSE * plot.bbox.width;
  for (const [at, line] of lines.entries()) {
    if ((line.kind ?? "line") === "line") plot.series[at + 1]!.width = dense ? 1 / uPlot.pxRatio : LINE_WIDTH;
  }
}
