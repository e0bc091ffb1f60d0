/** Slots over time, coloured by job: a canvas that is redrawn every second while it is visible. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { History, Node } from "../api/types";
import { cssVariable, jobColour, onColourSchemeChange } from "../lib/colours";
import { cancelDraw, queueDraw } from "../lib/draw-queue";
import { formatDuration, formatTime, formatTimeTick, pluralize } from "../lib/format";
import type { LaneBlock } from "../lib/lane-layout";
import { blockAt, HEADER_HEIGHT, layoutTimeline, type NodeRows, type TimelineLayout, TimeScale } from "../lib/timeline-geometry";
import { navigate } from "../state/navigation";
import { serverNow } from "../state/server-state";

const MIN_LABELLED_LANE = 14;
const MIN_LABELLED_WIDTH = 34;

interface Hover {
  block: LaneBlock;
  x: number;
  y: number;
}

const isLink = (hover: Hover | null): hover is Hover => hover !== null && hover.block.job !== "other";

export function SlotTimeline({ history, nodes, windowS }: { history: History; nodes: Node[]; windowS: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [hover, setHover] = useState<Hover | null>(null);
  const layout = useMemo(() => layoutTimeline(history.items, nodes), [history, nodes]);
  const latest = useRef({ layout, windowS });
  latest.current = { layout, windowS };
  useEffect(() => {
    const element = canvas.current!;
    return redrawWhileVisible(element, () => drawTimeline(element, latest.current.layout, latest.current.windowS));
  }, []);
  useEffect(() => drawTimeline(canvas.current!, layout, windowS), [layout, windowS]);

  const hoverAt = (event: MouseEvent): Hover | null => {
    const box = canvas.current!.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const block = blockAt(layout, new TimeScale(layout, box.width, windowS, serverNow()), x, y);
    return block && { block, x, y };
  };
  const openJob = (event: MouseEvent) => {
    const target = hoverAt(event);
    if (isLink(target)) navigate(`/jobs/${target.block.job}`);
  };
  return (
    <div class="timeline">
      <canvas
        ref={canvas}
        style={{ height: `${layout.height}px` }}
        role="img"
        aria-label={describe(history, nodes)}
        data-blocks={layout.nodes.reduce((sum, node) => sum + node.blocks.length, 0)}
        onPointerMove={(event) => setHover(hoverAt(event))}
        onPointerLeave={() => setHover(null)}
        onClick={openJob}
        class={isLink(hover) ? "is-link" : ""}
      />
      {hover && <Tooltip hover={hover} width={canvas.current?.clientWidth ?? 0} />}
    </div>
  );
}

function Tooltip({ hover, width }: { hover: Hover; width: number }) {
  const { name, start, end } = hover.block;
  const now = serverNow();
  const side = hover.x > width / 2 ? { right: `${width - hover.x + 12}px` } : { left: `${hover.x + 12}px` };
  return (
    <div class="tooltip" style={{ top: `${hover.y + 12}px`, ...side }}>
      <b>{name}</b>
      <span>
        {formatTime(start, now)} – {end === null ? "now" : formatTime(end, now)} ({formatDuration((end ?? now) - start)})
      </span>
    </div>
  );
}

function describe(history: History, nodes: Node[]): string {
  const used = new Map<string, number>();
  for (const bar of history.items) if (bar.end === null) used.set(bar.name, (used.get(bar.name) ?? 0) + bar.slots);
  const current = [...used].map(([name, slots]) => `${name} ${pluralize(slots, "slot")}`).join(", ");
  return `${pluralize(history.slots, "slot")} on ${pluralize(nodes.length, "node")} over time. Now: ${current || "all slots are free"}.`;
}

/** Redraws every second and on every change of size or colours. Returns a function that stops it. */
function redrawWhileVisible(element: HTMLElement, draw: () => void): () => void {
  let visible = true;
  const redraw = () => {
    if (visible) queueDraw(draw);
  };
  const visibility = new IntersectionObserver(([entry]) => {
    visible = entry!.isIntersecting;
    redraw();
  });
  visibility.observe(element);
  const resize = new ResizeObserver(redraw);
  resize.observe(element);
  const timer = setInterval(redraw, 1000);
  const stopColours = onColourSchemeChange(redraw);
  return () => {
    clearInterval(timer);
    visibility.disconnect();
    resize.disconnect();
    cancelDraw(draw);
    stopColours();
  };
}

function drawTimeline(canvas: HTMLCanvasElement, layout: TimelineLayout, windowS: number): void {
  const width = canvas.clientWidth;
  if (width === 0) return;
  const scale = new TimeScale(layout, width, windowS, serverNow());
  const context = prepareCanvas(canvas, width, layout.height);
  drawTicks(context, layout, scale);
  for (const node of layout.nodes) drawNode(context, node, layout, scale);
  context.fillStyle = cssVariable("--accent");
  context.fillRect(scale.x(scale.end), HEADER_HEIGHT - 6, 1.5, layout.height - HEADER_HEIGHT + 4);
}

/** Clears the canvas and fits it to the screen's pixels. */
function prepareCanvas(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = devicePixelRatio || 1;
  const [pixelWidth, pixelHeight] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixelWidth || canvas.height !== pixelHeight) {
    canvas.width = pixelWidth;
    canvas.height = pixelHeight;
  }
  const context = canvas.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  return context;
}

function drawTicks(context: CanvasRenderingContext2D, layout: TimelineLayout, scale: TimeScale): void {
  const stride = scale.tickStride();
  context.textAlign = "center";
  for (const t of scale.ticks(new Date(scale.end * 1000).getTimezoneOffset() * 60)) {
    const x = scale.x(t);
    context.fillStyle = cssVariable("--grid");
    context.fillRect(Math.round(x), HEADER_HEIGHT - 4, 1, layout.height - HEADER_HEIGHT);
    context.fillStyle = cssVariable("--muted");
    if (x > layout.left + 14 && x < scale.width - 26) context.fillText(formatTimeTick(t, stride), x, 9);
  }
}

function drawNode(context: CanvasRenderingContext2D, node: NodeRows, layout: TimelineLayout, scale: TimeScale): void {
  const { left, laneHeight } = layout;
  const height = node.lanes * laneHeight;
  context.fillStyle = cssVariable("--lane");
  for (let lane = 0; lane < node.lanes; lane++) {
    context.fillRect(left, node.top + lane * laneHeight + 1, scale.x(scale.end) - left, laneHeight - 2);
  }
  context.fillStyle = cssVariable("--muted");
  context.textAlign = "left";
  context.fillText(node.name, 2, node.top + height / 2, left - 6);
  context.save();
  context.beginPath();
  context.rect(left, node.top, scale.width - left, height);
  context.clip();
  for (const block of node.blocks) drawBlock(context, block, node.top + block.lane * laneHeight + 1, layout, scale);
  context.restore();
}

function drawBlock(
  context: CanvasRenderingContext2D,
  block: LaneBlock,
  y: number,
  { left, laneHeight }: TimelineLayout,
  scale: TimeScale,
): void {
  const from = Math.max(left, scale.x(block.start));
  const to = scale.x(block.end ?? scale.end);
  if (to < left) return;
  context.fillStyle = jobColour(block.job);
  context.beginPath();
  context.roundRect(from, y, Math.max(1.5, to - from - 0.5), laneHeight - 2, Math.min(4, laneHeight / 4));
  context.fill();
  if (laneHeight < MIN_LABELLED_LANE || to - from <= MIN_LABELLED_WIDTH) return;
  context.fillStyle = "#fff";
  context.fillText(ellipsize(context, block.name, to - from - 14), from + 7, y + laneHeight / 2 - 0.5);
}

function ellipsize(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  let cut = text;
  while (cut.length > 1 && context.measureText(`${cut}…`).width > width) cut = cut.slice(0, -1);
  return cut.length > 1 ? `${cut}…` : "";
}
