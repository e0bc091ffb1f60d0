/**
 * Bars (this many slots of a node, from then to then) laid out on lanes, one a slot.
 *
 * A job keeps its lanes for as long as it has slots on the node, so that growing and shrinking is seen as such and
 * nothing jumps. While slots are handed over, both jobs have them in the books: the picture shows the new one.
 */

import type { Bar } from "../api/types";

export interface Block {
  job: string;
  name: string;
  lane: number;
  start: number;
  end: number | null;
}

interface Edge {
  t: number;
  bar: Bar;
  opens: boolean;
}

interface Claim {
  slots: number;
  name: string;
  since: number;
}

/** The blocks of one node, by start, on `slots` lanes. */
export function lay(bars: readonly Bar[], slots: number): Block[] {
  const lanes: (Block | null)[] = new Array<Block | null>(slots).fill(null);
  const done: Block[] = [];
  const wanted = new Map<string, Claim>();
  const edges = ordered(bars);
  for (let at = 0; at < edges.length; ) {
    const t = edges[at]!.t;
    for (; at < edges.length && edges[at]!.t === t; at++) change(wanted, edges[at]!);
    settle(lanes, granted(wanted, slots), t, done);
  }
  for (const block of lanes) if (block) done.push(block);
  return done.filter((block) => block.end === null || block.end > block.start).sort((a, b) => a.start - b.start);
}

function ordered(bars: readonly Bar[]): Edge[] {
  const edges: Edge[] = [];
  for (const bar of bars) {
    edges.push({ t: bar.start, bar, opens: true });
    if (bar.end !== null) edges.push({ t: bar.end, bar, opens: false });
  }
  return edges.sort((a, b) => a.t - b.t || Number(a.opens) - Number(b.opens));
}

function change(wanted: Map<string, Claim>, edge: Edge): void {
  const { job, name, slots } = edge.bar;
  const old = wanted.get(job);
  const now = (old?.slots ?? 0) + (edge.opens ? slots : -slots);
  if (now > 0) wanted.set(job, { slots: now, name, since: edge.opens ? edge.t : (old?.since ?? edge.t) });
  else wanted.delete(job);
}

/** What fits: the newest claims first. */
function granted(wanted: Map<string, Claim>, slots: number): Map<string, Claim> {
  let free = slots;
  const claims = [...wanted].sort(([, a], [, b]) => b.since - a.since);
  const fits = new Map<string, Claim>();
  for (const [job, claim] of claims) {
    const given = Math.min(free, claim.slots);
    if (given > 0) fits.set(job, { ...claim, slots: given });
    free -= given;
  }
  return fits;
}

function settle(lanes: (Block | null)[], wanted: Map<string, Claim>, t: number, done: Block[]): void {
  const held = new Map<string, number>();
  for (let lane = 0; lane < lanes.length; lane++) {
    const block = lanes[lane];
    if (!block) continue;
    const count = (held.get(block.job) ?? 0) + 1;
    if (count <= (wanted.get(block.job)?.slots ?? 0)) held.set(block.job, count);
    else {
      done.push({ ...block, end: t });
      lanes[lane] = null;
    }
  }
  for (const [job, { slots, name }] of wanted) {
    for (let count = held.get(job) ?? 0; count < slots; count++) {
      const lane = place(lanes, job);
      if (lane >= 0) lanes[lane] = { job, name, lane, start: t, end: null };
    }
  }
}

/** A free lane, beside the job's others if there is one; -1 if none is free. */
function place(lanes: (Block | null)[], job: string): number {
  let first = -1;
  for (let lane = 0; lane < lanes.length; lane++) {
    if (lanes[lane] !== null) continue;
    if (lanes[lane - 1]?.job === job || lanes[lane + 1]?.job === job) return lane;
    if (first < 0) first = lane;
  }
  return first;
}
