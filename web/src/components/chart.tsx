/** A chart: uPlot with the values under the cursor, arrow keys, and zoom by dragging. */

import { useLayoutEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { hasValues, lastValue, moveCursor, valueAt } from "../lib/chart-data";
import { onColourSchemeChange } from "../lib/colours";
import { cancelDraw, queueDraw } from "../lib/draw-queue";
import { formatInteger, formatNumber, formatTime, MISSING } from "../lib/format";
import { serverNow } from "../state/server-state";
import { type ChartLine, PLOT_HEIGHT, plotOptions, thinDenseLines } from "./plot-options";

export type { ChartLine } from "./plot-options";
export type ChartData = [x: number[], ...y: (number | null)[][]];

interface ChartProps {
  title: string;
  lines: ChartLine[];
  x: "step" | "time";
  logScale?: boolean;
  /** Charts with the same key move their cursors together. */
  syncKey?: string;
  data: () => ChartData;
  /** Calls back when the data has changed. Returns a function that unsubscribes. */
  subscribe: (callback: () => void) => () => void;
  /** Shown while there is no value. */
  empty?: string;
}

/** The elements of a chart that are updated without rendering it again. */
interface ChartElements {
  figure: HTMLElement;
  box: HTMLElement;
  position: HTMLElement;
  values: (HTMLElement | null)[];
}

const REDRAW_MS = 200;

export function Chart(props: ChartProps) {
  const { title, lines, x, logScale = false, syncKey, empty = "No data yet" } = props;
  const figure = useRef<HTMLElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const position = useRef<HTMLElement>(null);
  const values = useRef<(HTMLElement | null)[]>([]);
  const latest = useRef(props);
  latest.current = props;
  const lineKey = JSON.stringify(lines);

  // In a layout effect: a plot with other lines than the props must never be drawn.
  useLayoutEffect(() => {
    const elements = { figure: figure.current!, box: box.current!, position: position.current!, values: values.current };
    const spec = { lines: latest.current.lines, x, logScale, syncKey };
    const plot = new uPlot(plotOptions(spec, elements.box.clientWidth), latest.current.data(), elements.box);
    return controlPlot(plot, elements, () => latest.current);
  }, [x, logScale, syncKey, lineKey]);

  return (
    <figure class="chart card" ref={figure}>
      <figcaption>
        <h3>{title}</h3>
        <span class="chart-position" ref={position} />
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

/** Redraws the plot when its data, size or colours change, and handles its input. Returns a function that ends all of it. */
function controlPlot(plot: uPlot, elements: ChartElements, props: () => ChartProps): () => void {
  const { box } = elements;
  const { lines } = props();
  let zoom: { min: number; max: number } | null = null;
  let visible = true;
  let drawnAt = 0;
  let timer: ReturnType<typeof setTimeout> | undefined;

  const update = () => updateReadout(plot, props(), elements);
  const draw = () => {
    drawnAt = performance.now();
    plot.batch(() => {
      plot.setData(props().data(), true);
      if (zoom) plot.setScale("x", zoom);
    });
    update();
  };
  const scheduleDraw = () => {
    // A plot that is out of sight is drawn only for the first time.
    if (timer !== undefined || (!visible && plot.data[0].length > 0)) return;
    timer = setTimeout(
      () => {
        timer = undefined;
        queueDraw(draw);
      },
      Math.max(0, drawnAt + REDRAW_MS - performance.now()),
    );
  };
  const resetZoom = () => {
    zoom = null;
  };
  const handleKey = (event: KeyboardEvent) => {
    if (event.key === "Escape") {
      resetZoom();
      draw();
      plot.setCursor({ left: -10, top: -10 });
    } else moveCursorByKey(plot, event);
  };

  plot.hooks.drawClear = [() => thinDenseLines(plot, lines)];
  plot.hooks.setCursor = [update];
  plot.hooks.setSelect = [
    () => {
      const { left, width } = plot.select;
      if (width > 0) zoom = { min: plot.posToVal(left, "x"), max: plot.posToVal(left + width, "x") };
    },
  ];
  plot.over.addEventListener("dblclick", resetZoom);
  box.addEventListener("keydown", handleKey);
  const visibility = new IntersectionObserver(([entry]) => {
    visible = entry!.isIntersecting;
    scheduleDraw();
  });
  visibility.observe(box);
  const resize = new ResizeObserver(() => {
    const width = Math.floor(box.clientWidth);
    if (width > 0 && width !== plot.width) plot.setSize({ width, height: PLOT_HEIGHT });
  });
  resize.observe(box);
  const unsubscribe = props().subscribe(scheduleDraw);
  const stopColours = onColourSchemeChange(() => plot.redraw(false, true));
  update();
  return () => {
    unsubscribe();
    stopColours();
    visibility.disconnect();
    resize.disconnect();
    box.removeEventListener("keydown", handleKey);
    clearTimeout(timer);
    cancelDraw(draw);
    plot.destroy();
  };
}

function moveCursorByKey(plot: uPlot, event: KeyboardEvent): void {
  const xs = plot.data[0];
  const at = moveCursor(event.key, plot.cursor.idx ?? xs.length - 1, xs.length);
  if (at === null) return;
  event.preventDefault();
  plot.setCursor({ left: plot.valToPos(xs[at]!, "x"), top: 10 });
}

/** Writes the values under the cursor, or else the last ones, into the caption and the label for screen readers. */
function updateReadout(plot: uPlot, { lines, title, x }: ChartProps, { figure, box, position, values }: ChartElements): void {
  const xs = plot.data[0];
  const columns = lines.map((_, at) => plot.data[at + 1] ?? []);
  const cursor = (plot.cursor.left ?? -1) >= 0 ? (plot.cursor.idx ?? null) : null;
  figure.dataset.points = String(xs.length);
  box.classList.toggle("is-empty", !columns.some((column) => hasValues(column)));
  const texts = lines.map((line, at) => {
    const value = cursor === null ? lastValue(columns[at]!) : valueAt(columns[at]!, cursor);
    return value === null ? MISSING : (line.format ?? formatNumber)(value);
  });
  for (const [at, text] of texts.entries()) setText(values[at] ?? null, text);
  const where = cursor === null ? "" : formatPosition(xs[cursor], x);
  setText(position, where);
  const readings = lines.map((line, at) => `${line.label} ${texts[at]}`).join(", ");
  const label = `${title}: ${readings}${where ? ` at ${where}` : ""}. Arrow keys move through the points.`;
  if (box.getAttribute("aria-label") !== label) box.setAttribute("aria-label", label);
}

function formatPosition(value: number | undefined, x: "step" | "time"): string {
  if (value === undefined) return "";
  return x === "step" ? `step ${formatInteger(value)}` : formatTime(value, serverNow());
}

function setText(element: HTMLElement | null, text: string): void {
  if (element && element.textContent !== text) element.textContent = text;
}
