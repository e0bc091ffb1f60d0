/** Where things are in the picture of slots over time. Pixels, from the top left. */

import type { Bar } from "../api/types";
import { assignLanes, type LaneBlock } from "./lane-layout";

export const HEADER_HEIGHT = 22;
const NODE_GAP = 12;
const RIGHT_MARGIN = 10;
const LABEL_WIDTH = 58;
const MAX_LANES_HEIGHT = 420;
const MIN_TICK_WIDTH = 76;
const TICK_STRIDES_S = [10, 30, 60, 300, 600, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400];

export interface NodeRows {
  name: string;
  lanes: number;
  top: number;
  blocks: LaneBlock[];
}

export interface TimelineLayout {
  nodes: NodeRows[];
  laneHeight: number;
  height: number;
  /** Width of the column with the nodes' names. */
  left: number;
}

/** One row of lanes per node. The more slots there are, the thinner the lanes. */
export function layoutTimeline(bars: readonly Bar[], nodes: readonly { name: string; slots: number }[]): TimelineLayout {
  const known = nodes.length > 0 ? nodes : nodesOf(bars);
  const lanes = known.reduce((sum, node) => sum + node.slots, 0);
  const laneHeight = Math.max(4, Math.min(30, Math.floor(MAX_LANES_HEIGHT / Math.max(1, lanes))));
  let top = HEADER_HEIGHT;
  const rows = known.map(({ name, slots }) => {
    const own = bars.filter((bar) => bar.node === name);
    const row = { name, lanes: slots, top, blocks: assignLanes(own, slots) };
    top += slots * laneHeight + NODE_GAP;
    return row;
  });
  const height = HEADER_HEIGHT + lanes * laneHeight + Math.max(0, rows.length - 1) * NODE_GAP + 4;
  return { nodes: rows, laneHeight, height, left: rows.length > 1 || rows[0]?.name ? LABEL_WIDTH : 8 };
}

/** The nodes that the bars mention, as large as the largest bar. */
function nodesOf(bars: readonly Bar[]): { name: string; slots: number }[] {
  const slots = new Map<string, number>();
  for (const bar of bars) slots.set(bar.node, Math.max(slots.get(bar.node) ?? 0, bar.slots));
  return [...slots].map(([name, count]) => ({ name, slots: count }));
}

/** Maps times to pixels and back, for a window that ends at `end`. */
export class TimeScale {
  constructor(
    private readonly layout: TimelineLayout,
    readonly width: number,
    readonly windowS: number,
    readonly end: number,
  ) {}

  private get pixels(): number {
    return this.width - this.layout.left - RIGHT_MARGIN;
  }

  x(t: number): number {
    return this.layout.left + ((t - (this.end - this.windowS)) / this.windowS) * this.pixels;
  }

  t(x: number): number {
    return this.end - this.windowS + ((x - this.layout.left) / this.pixels) * this.windowS;
  }

  /** Seconds between two ticks, such that their labels do not touch. */
  tickStride(): number {
    return TICK_STRIDES_S.find((stride) => (stride / this.windowS) * this.width >= MIN_TICK_WIDTH) ?? 86_400;
  }

  /** The times of the ticks: whole strides of local time, `zoneS` seconds behind UTC. */
  ticks(zoneS: number): number[] {
    const stride = this.tickStride();
    const ticks: number[] = [];
    const first = Math.ceil((this.end - this.windowS - zoneS) / stride) * stride + zoneS;
    for (let t = first; t <= this.end; t += stride) ticks.push(t);
    return ticks;
  }
}

/** The block at this place, or null. */
export function blockAt(layout: TimelineLayout, scale: TimeScale, x: number, y: number): LaneBlock | null {
  if (x < layout.left) return null;
  const t = scale.t(x);
  for (const { top, lanes, blocks } of layout.nodes) {
    const lane = Math.floor((y - top) / layout.laneHeight);
    if (lane < 0 || lane >= lanes) continue;
    return blocks.find((block) => block.lane === lane && block.start <= t && t <= (block.end ?? scale.end)) ?? null;
  }
  return null;
}
