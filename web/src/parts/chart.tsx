/** One chart: uPlot, the page's colours, values of the point under the cursor, arrow keys, zoom by dragging. */

import { useLayoutEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { onScheme, styled } from "../lib/colours";
import { clockTick, figure, moment, tick, whole } from "../lib/format";
import { paint, unpaint } from "../lib/paint";
import { now } from "../state/live";

export interface Line {
  label: string;
  /** A custom property of the style sheet. */
  colour: string;
  unit?: string;
  /** Lines with another unit get the axis on the right. */
  side?: "left" | "right";
  kind?: "line" | "steps" | "stems";
  read?: (value: number) => string;
}

export type Data = [x: number[], ...y: (number | null)[][]];

export interface ChartProps {
  title: string;
  lines: Line[];
  x: "step" | "time";
  log?: boolean;
  /** Charts with the same name move their cursors together. */
  together?: string;
  data: () => Data;
  /** Calls back when the data has changed; gives what stops that. */
  changes: (call: () => void) => () => void;
  empty?: string;
}

const HEIGHT = 190;
const LINE = 1.5;
const STEM = 2;
/** Points to a pixel from which on a line is drawn fine. */
const DENSE = 2;
const REDRAW_MS = 200;

export function Chart(props: ChartProps) {
  const { title, lines, x, log = false, together, empty = "Nothing yet" } = props;
  const box = useRef<HTMLDivElement>(null);
  const figureBox = useRef<HTMLElement>(null);
  const values = useRef<(HTMLElement | null)[]>([]);
  const place = useRef<HTMLElement>(null);
  const latest = useRef(props);
  latest.current = props;

  // Before anything else happens: a plot of other lines than those of the props must not be drawn.
  useLayoutEffect(() => {
    const holder = box.current!;
    const plot = new uPlot(options(lines, x, log, together, holder.clientWidth), latest.current.data(), holder);
    let zoom: { min: number; max: number } | null = null;
    let visible = true;
    let drawnAt = 0;
    let timer: ReturnType<typeof setTimeout> | null = null;

    const show = () => read(plot, latest.current, values.current, place.current, figureBox.current!, holder);
    const draw = () => {
      drawnAt = performance.now();
      const data = latest.current.data();
      plot.batch(() => {
        plot.setData(data, true);
        if (zoom) plot.setScale("x", zoom);
      });
      show();
    };
    const changed = () => {
      // Out of sight nothing is drawn, except for the first time.
      if (timer !== null || (!visible && plot.data[0].length > 0)) return;
      const wait = Math.max(0, drawnAt + REDRAW_MS - performance.now());
      timer = setTimeout(() => {
        timer = null;
        paint(draw);
      }, wait);
    };
    plot.hooks.drawClear = [() => finer(plot, lines)];
    plot.hooks.setCursor = [show];
    plot.hooks.setSelect = [
      () => {
        if (plot.select.width > 0) zoom = { min: plot.posToVal(plot.select.left, "x"), max: plot.posToVal(plot.select.left + plot.select.width, "x") };
      },
    ];
    const whole = () => {
      zoom = null;
    };
    plot.over.addEventListener("dblclick", whole);

    const sight = new IntersectionObserver(([entry]) => {
      visible = entry!.isIntersecting;
      changed();
    });
    sight.observe(holder);
    const size = new ResizeObserver(() => {
      const width = Math.floor(holder.clientWidth);
      if (width > 0 && width !== plot.width) plot.setSize({ width, height: HEIGHT });
    });
    size.observe(holder);
    const stopChanges = latest.current.changes(changed);
    const stopScheme = onScheme(() => plot.redraw(false, true));
    const keys = (event: KeyboardEvent) => move(plot, event, whole, draw);
    holder.addEventListener("keydown", keys);
    show();
    return () => {
      stopChanges();
      stopScheme();
      sight.disconnect();
      size.disconnect();
      holder.removeEventListener("keydown", keys);
      if (timer !== null) clearTimeout(timer);
      unpaint(draw);
      plot.destroy();
    };
  }, [x, log, together, JSON.stringify(lines)]);

  return (
    <figure class="chart card" ref={figureBox}>
      <figcaption>
        <h3>{title}</h3>
        <span class="chart-place" ref={place} />
        <span class="chart-values">
          {lines.map((line, at) => (
            <span class="chart-value" key={line.label}>
              <i class="dot" style={{ background: `var(${line.colour})` }} />
              {line.label}{" "}
              <b
                ref={(element) => {
                  values.current[at] = element;
                }}
              />
            </span>
          ))}
        </span>
      </figcaption>
      <div class="chart-box" ref={box} tabIndex={0} role="img" aria-label={title} data-empty={empty} />
    </figure>
  );
}

function options(lines: Line[], x: "step" | "time", log: boolean, together: string | undefined, width: number): uPlot.Options {
  const axis = { stroke: () => styled("--muted"), grid: { stroke: () => styled("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const sides = new Set(lines.map((line) => line.side ?? "left"));
  const counts = new Set(lines.filter((line) => line.kind === "steps").map((line) => line.side ?? "left"));
  const y = (side: "left" | "right"): uPlot.Axis => ({
    ...axis,
    scale: side,
    side: side === "left" ? 3 : 1,
    size: 52,
    grid: side === "left" ? axis.grid : { show: false },
    values: (plot, splits, _, __, stride) =>
      splits.map((one) => {
        if (one === null || bare(plot, side) || (counts.has(side) && !Number.isInteger(one))) return "";
        return counts.has(side) || (log && side === "left") ? figure(one) : tick(one, stride);
      }),
  });
  return {
    width: Math.max(160, Math.floor(width)),
    height: HEIGHT,
    padding: [10, sides.has("right") ? 0 : 12, 0, 0],
    legend: { show: false },
    cursor: { drag: { x: true, y: false, dist: 6 }, points: { size: 7 }, ...(together ? { sync: { key: together, scales: ["x", null] } } : {}) },
    scales: {
      x: { time: x === "time" },
      left: { distr: log ? 3 : 1, ...(log ? {} : { range: padded(lines.some((line) => line.kind === "steps")) }) },
      right: { range: padded(true) },
    },
    axes: [
      { ...axis, size: 30, space: x === "step" ? 50 : 64, values: x === "step" ? stepTicks : timeTicks },
      y("left"),
      ...(sides.has("right") ? [y("right")] : []),
    ],
    series: [{}, ...lines.map(series)],
  };
}

function stepTicks(_: uPlot, splits: number[]): string[] {
  return splits.map((one) => (Number.isInteger(one) ? figure(one) : ""));
}

function timeTicks(_: uPlot, splits: number[], __: number, ___: number, stride: number): string[] {
  return splits.map((one) => (stride < 1 && !Number.isInteger(one) ? "" : clockTick(one, stride)));
}

/** Whether no line of this side has a value: its axis would show numbers of nothing. */
function bare(plot: uPlot, side: string): boolean {
  return plot.series.every((one, at) => at === 0 || one.scale !== side || !plot.data[at]?.some((value) => value !== null && value !== undefined));
}

function series(line: Line): uPlot.Series {
  const kind = line.kind ?? "line";
  return {
    label: line.label,
    scale: line.side ?? "left",
    stroke: () => styled(line.colour),
    width: kind === "stems" ? STEM : LINE,
    spanGaps: kind === "line",
    points: { show: kind === "stems" ? true : lonely, size: 6, fill: () => styled(line.colour) },
    ...(kind === "steps" ? { paths: uPlot.paths.stepped!({ align: 1 }), fill: () => `color-mix(in srgb, ${styled(line.colour)} 14%, transparent)` } : {}),
    ...(kind === "stems" ? { paths: uPlot.paths.bars!({ size: [0.01, 3, 2] }) } : {}),
  };
}

/**
 * Where a line has several points to a pixel it goes up and down in each of them, and a browser without a graphics card fills the
 * outline of all that together: tens of milliseconds. A stroke of one pixel has no outline to fill.
 */
function finer(plot: uPlot, lines: Line[]): void {
  const [from, to] = plot.series[0]!.idxs ?? [0, 0];
  const dense = to - from > DENSE * plot.bbox.width;
  lines.forEach((line, row) => {
    if ((line.kind ?? "line") === "line") plot.series[row + 1]!.width = dense ? 1 / uPlot.pxRatio : LINE;
  });
}

/** A line with fewer than two values would not be seen without its points. */
function lonely(plot: uPlot, row: number): boolean {
  let count = 0;
  for (const value of plot.data[row] ?? []) if (value !== null && value !== undefined && ++count > 1) return false;
  return true;
}

/** Some room above and below; counts begin at zero. */
function padded(zero: boolean): uPlot.Range.Function {
  return (_, low, high) => {
    if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
    const bottom = zero ? Math.min(0, low) : low;
    const room = (high - bottom || Math.abs(high) || 1) * 0.07;
    return [zero && low >= 0 ? 0 : bottom - room, high + room];
  };
}

/** Writes the values under the cursor, or the last ones, and says the same to who cannot see the chart. */
function read(plot: uPlot, props: ChartProps, into: (HTMLElement | null)[], place: HTMLElement | null, box: HTMLElement | null, holder: HTMLElement | null): void {
  if (box === null || holder === null) return; // the view was left while its data were on their way
  const xs = plot.data[0];
  const at = plot.cursor.idx ?? null;
  const hovering = at !== null && (plot.cursor.left ?? -1) >= 0;
  const said: string[] = [];
  box.dataset.points = String(xs.length);
  holder.classList.toggle("is-empty", props.lines.every((_, row) => !plot.data[row + 1]?.some((value) => value !== null && value !== undefined)));
  props.lines.forEach((line, row) => {
    const column = plot.data[row + 1] ?? [];
    const value = hovering ? near(column, at) : lastOf(column);
    const text = value === null ? "–" : `${line.read ? line.read(value) : figure(value)}${line.unit ? ` ${line.unit}` : ""}`;
    const element = into[row];
    if (element && element.textContent !== text) element.textContent = text;
    said.push(`${line.label} ${text}`);
  });
  const x = hovering ? xs[at] : undefined;
  const where = x === undefined ? "" : props.x === "step" ? `step ${whole(x)}` : moment(x, now());
  if (place && place.textContent !== where) place.textContent = where;
  const label = `${props.title}: ${said.join(", ")}${where ? ` at ${where}` : ""}. Arrow keys move through the points.`;
  if (holder.getAttribute("aria-label") !== label) holder.setAttribute("aria-label", label);
}

type Column = ArrayLike<number | null | undefined>;

function near(column: Column, at: number): number | null {
  for (let back = at; back >= Math.max(0, at - 50); back--) {
    const value = column[back];
    if (value !== null && value !== undefined) return value;
  }
  return null;
}

function lastOf(column: Column): number | null {
  for (let at = column.length - 1; at >= 0; at--) {
    const value = column[at];
    if (value !== null && value !== undefined) return value;
  }
  return null;
}

function move(plot: uPlot, event: KeyboardEvent, whole: () => void, draw: () => void): void {
  const xs = plot.data[0];
  if (xs.length === 0) return;
  const here = plot.cursor.idx ?? xs.length - 1;
  const stride = Math.max(1, Math.floor(xs.length / 100));
  const to = { ArrowLeft: here - stride, ArrowRight: here + stride, Home: 0, End: xs.length - 1 }[event.key];
  if (event.key === "Escape") {
    whole();
    draw();
    plot.setCursor({ left: -10, top: -10 });
  } else if (to !== undefined) {
    event.preventDefault();
    const at = Math.min(xs.length - 1, Math.max(0, to));
    plot.setCursor({ left: plot.valToPos(xs[at]!, "x"), top: 10 });
  }
}
