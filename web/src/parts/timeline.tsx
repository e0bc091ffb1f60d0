/** Slots over time, coloured by job: a canvas that is drawn again every second while it can be seen. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { History, Node } from "../api/types";
import { colourOf, onScheme, styled } from "../lib/colours";
import { clockTick, duration, moment, plural } from "../lib/format";
import { lay, type Block } from "../lib/lanes";
import { paint, unpaint } from "../lib/paint";
import { go } from "../lib/route";
import { now } from "../state/live";

const HEAD = 22;
const GAP = 12;

interface Group {
  name: string;
  lanes: number;
  blocks: Block[];
}

interface Shape {
  groups: Group[];
  lane: number;
  height: number;
  left: number;
}

interface Hit {
  block: Block;
  x: number;
  y: number;
}

export function Timeline({ history, nodes, windowS }: { history: History; nodes: Node[]; windowS: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [hit, setHit] = useState<Hit | null>(null);
  const shape = useMemo(() => measure(history, nodes), [history, nodes]);
  const latest = useRef({ shape, windowS });
  latest.current = { shape, windowS };

  useEffect(() => {
    const element = canvas.current!;
    let visible = true;
    const draw = () => picture(element, latest.current.shape, latest.current.windowS);
    const ask = () => visible && paint(draw);
    const sight = new IntersectionObserver(([entry]) => {
      visible = entry!.isIntersecting;
      ask();
    });
    sight.observe(element);
    const size = new ResizeObserver(ask);
    size.observe(element);
    const timer = setInterval(ask, 1000);
    const stop = onScheme(ask);
    return () => {
      clearInterval(timer);
      sight.disconnect();
      size.disconnect();
      unpaint(draw);
      stop();
    };
  }, []);
  useEffect(() => {
    picture(canvas.current!, shape, windowS);
  }, [shape, windowS]);

  const find = (event: PointerEvent): Hit | null => {
    const box = canvas.current!.getBoundingClientRect();
    const block = under(event.clientX - box.left, event.clientY - box.top, box.width, shape, windowS);
    return block && { block, x: event.clientX - box.left, y: event.clientY - box.top };
  };
  return (
    <div class="timeline">
      <canvas
        ref={canvas}
        style={{ height: `${shape.height}px` }}
        role="img"
        aria-label={told(history, nodes)}
        data-blocks={shape.groups.reduce((sum, group) => sum + group.blocks.length, 0)}
        onPointerMove={(event) => setHit(find(event))}
        onPointerLeave={() => setHit(null)}
        onClick={(event) => {
          const found = find(event as unknown as PointerEvent);
          if (found && found.block.job !== "other") go(`/jobs/${found.block.job}`);
        }}
        class={hit && hit.block.job !== "other" ? "is-link" : ""}
      />
      {hit && <Tip hit={hit} width={canvas.current?.clientWidth ?? 0} />}
    </div>
  );
}

function Tip({ hit, width }: { hit: Hit; width: number }) {
  const { block } = hit;
  const end = block.end ?? now();
  const side = hit.x > width / 2 ? { right: `${width - hit.x + 12}px` } : { left: `${hit.x + 12}px` };
  return (
    <div class="tip" style={{ top: `${hit.y + 12}px`, ...side }}>
      <b>{block.name}</b>
      <span>
        {moment(block.start, now())} – {block.end === null ? "now" : moment(block.end, now())} ({duration(end - block.start)})
      </span>
    </div>
  );
}

/** Which lanes there are and how high they are drawn: many slots get thin lanes. */
function measure(history: History, nodes: Node[]): Shape {
  const known = nodes.length > 0 ? nodes : [...new Set(history.items.map((bar) => bar.node))].map((name) => ({ name, slots: Math.max(...history.items.filter((bar) => bar.node === name).map((bar) => bar.slots)) }));
  const groups = known.map(({ name, slots }) => {
    const blocks = lay(
      history.items.filter((bar) => bar.node === name),
      slots,
    );
    return { name, blocks, lanes: slots };
  });
  const lanes = groups.reduce((sum, group) => sum + group.lanes, 0);
  const lane = Math.max(4, Math.min(30, Math.floor(420 / Math.max(1, lanes))));
  const height = HEAD + lanes * lane + Math.max(0, groups.length - 1) * GAP + 4;
  return { groups, lane, height, left: groups.length > 1 || groups[0]?.name ? 58 : 8 };
}

function picture(canvas: HTMLCanvasElement, shape: Shape, windowS: number): void {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (width === 0) return;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(shape.height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(shape.height * ratio);
  }
  const pen = canvas.getContext("2d")!;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, shape.height);
  const end = now();
  const at = (t: number) => shape.left + ((t - (end - windowS)) / windowS) * (width - shape.left - 10);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  ticks(pen, at, end, windowS, shape, width);
  let top = HEAD;
  for (const group of shape.groups) {
    drawGroup(pen, group, top, at, end, shape, width);
    top += group.lanes * shape.lane + GAP;
  }
  pen.fillStyle = styled("--accent");
  pen.fillRect(at(end), HEAD - 6, 1.5, shape.height - HEAD + 4);
}

const STRIDES = [10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

function ticks(pen: CanvasRenderingContext2D, at: (t: number) => number, end: number, windowS: number, shape: Shape, width: number): void {
  const stride = STRIDES.find((one) => (one / windowS) * width >= 76) ?? 86400;
  const zone = new Date(end * 1000).getTimezoneOffset() * 60;
  pen.textAlign = "center";
  for (let t = Math.ceil((end - windowS - zone) / stride) * stride + zone; t <= end; t += stride) {
    const x = at(t);
    pen.fillStyle = styled("--grid");
    pen.fillRect(Math.round(x), HEAD - 4, 1, shape.height - HEAD);
    pen.fillStyle = styled("--muted");
    if (x > shape.left + 14 && x < width - 26) pen.fillText(clockTick(t, stride), x, 9);
  }
}

function drawGroup(pen: CanvasRenderingContext2D, group: Group, top: number, at: (t: number) => number, end: number, shape: Shape, width: number): void {
  const { lane, left } = shape;
  pen.fillStyle = styled("--lane");
  const right = at(end);
  for (let row = 0; row < group.lanes; row++) pen.fillRect(left, top + row * lane + 1, right - left, lane - 2);
  pen.fillStyle = styled("--muted");
  pen.textAlign = "left";
  pen.fillText(group.name, 2, top + (group.lanes * lane) / 2, left - 6);
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width - left, group.lanes * lane);
  pen.clip();
  for (const block of group.blocks) {
    const from = Math.max(left, at(block.start));
    const to = at(block.end ?? end);
    if (to < left) continue;
    const y = top + block.lane * lane + 1;
    pen.fillStyle = colourOf(block.job);
    pen.beginPath();
    pen.roundRect(from, y, Math.max(1.5, to - from - 0.5), lane - 2, Math.min(4, lane / 4));
    pen.fill();
    if (lane >= 14 && to - from > 34) {
      pen.fillStyle = "#fff";
      pen.textAlign = "left";
      pen.fillText(fitted(pen, block.name, to - from - 14), from + 7, y + lane / 2 - 0.5);
    }
  }
  pen.restore();
}

function fitted(pen: CanvasRenderingContext2D, text: string, width: number): string {
  if (pen.measureText(text).width <= width) return text;
  let cut = text;
  while (cut.length > 1 && pen.measureText(`${cut}…`).width > width) cut = cut.slice(0, -1);
  return cut.length > 1 ? `${cut}…` : "";
}

function under(x: number, y: number, width: number, shape: Shape, windowS: number): Block | null {
  const end = now();
  const t = end - windowS + ((x - shape.left) / (width - shape.left - 10)) * windowS;
  let top = HEAD;
  for (const group of shape.groups) {
    const lane = Math.floor((y - top) / shape.lane);
    if (lane >= 0 && lane < group.lanes && x >= shape.left) {
      return group.blocks.find((block) => block.lane === lane && block.start <= t && t <= (block.end ?? end)) ?? null;
    }
    top += group.lanes * shape.lane + GAP;
  }
  return null;
}

function told(history: History, nodes: Node[]): string {
  const held = new Map<string, number>();
  for (const bar of history.items) if (bar.end === null) held.set(bar.name, (held.get(bar.name) ?? 0) + bar.slots);
  const said = [...held].map(([name, slots]) => `${name} ${plural(slots, "slot")}`).join(", ") || "all slots are free";
  return `${plural(history.slots, "slot")} on ${plural(nodes.length, "node")} over time. Now: ${said}.`;
}
