/**
 * Assigns bars (a job held n slots of a node from start to end) to lanes, one lane per slot.
 *
 * A job keeps its lanes for as long as it holds slots of the node, so that growing and shrinking look like growing and
 * shrinking. During a handover both jobs are recorded as holding the slots: the newer job is shown.
 */

import type { Bar } from "../api/types";

export interface LaneBlock {
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

type Lanes = (LaneBlock | null)[];

/** Lays out the bars of one node on `slots` lanes. Returns the blocks sorted by start time. */
export function assignLanes(bars: readonly Bar[], slots: number): LaneBlock[] {
  const lanes: Lanes = new Array<LaneBlock | null>(slots).fill(null);
  const closed: LaneBlock[] = [];
  const claims = new Map<string, Claim>();
  const edges = sortedEdges(bars);
  for (let at = 0; at < edges.length; ) {
    const { t } = edges[at]!;
    for (; at < edges.length && edges[at]!.t === t; at++) applyEdge(claims, edges[at]!);
    const fitting = fitClaims(claims, slots);
    closeLanes(lanes, fitting, t, closed);
    openLanes(lanes, fitting, t);
  }
  const blocks = [...closed, ...lanes.filter((block) => block !== null)];
  return blocks.filter((block) => block.end === null || block.end > block.start).sort((a, b) => a.start - b.start);
}

/** At the same time, ends come before starts. Bars without a duration have no edges. */
function sortedEdges(bars: readonly Bar[]): Edge[] {
  const edges: Edge[] = [];
  for (const bar of bars) {
    if (bar.end !== null && bar.end <= bar.start) continue;
    edges.push({ t: bar.start, bar, opens: true });
    if (bar.end !== null) edges.push({ t: bar.end, bar, opens: false });
  }
  return edges.sort((a, b) => a.t - b.t || Number(a.opens) - Number(b.opens));
}

function applyEdge(claims: Map<string, Claim>, edge: Edge): void {
  const { job, name, slots } = edge.bar;
  const previous = claims.get(job);
  const total = (previous?.slots ?? 0) + (edge.opens ? slots : -slots);
  if (total > 0) claims.set(job, { slots: total, name, since: edge.opens ? edge.t : (previous?.since ?? edge.t) });
  else claims.delete(job);
}

/** The claims that fit on the node, newest first. */
function fitClaims(claims: Map<string, Claim>, slots: number): Map<string, Claim> {
  let free = slots;
  const fitting = new Map<string, Claim>();
  for (const [job, claim] of [...claims].sort(([, a], [, b]) => b.since - a.since)) {
    const granted = Math.min(free, claim.slots);
    if (granted > 0) fitting.set(job, { ...claim, slots: granted });
    free -= granted;
  }
  return fitting;
}

/** Ends the blocks of jobs that hold more lanes than they claim; the lowest lanes are kept. */
function closeLanes(lanes: Lanes, claims: Map<string, Claim>, t: number, closed: LaneBlock[]): void {
  const kept = new Map<string, number>();
  for (const [lane, block] of lanes.entries()) {
    if (block === null) continue;
    const count = (kept.get(block.job) ?? 0) + 1;
    if (count <= (claims.get(block.job)?.slots ?? 0)) kept.set(block.job, count);
    else {
      closed.push({ ...block, end: t });
      lanes[lane] = null;
    }
  }
}

function openLanes(lanes: Lanes, claims: Map<string, Claim>, t: number): void {
  for (const [job, { slots, name }] of claims) {
    for (let count = lanes.filter((block) => block?.job === job).length; count < slots; count++) {
      const lane = freeLane(lanes, job);
      if (lane >= 0) lanes[lane] = { job, name, lane, start: t, end: null };
    }
  }
}

/** A free lane, next to another lane of the job if possible; -1 if all are taken. */
function freeLane(lanes: Lanes, job: string): number {
  const adjacent = lanes.findIndex(
    (block, lane) => block === null && (lanes[lane - 1]?.job === job || lanes[lane + 1]?.job === job),
  );
  return adjacent >= 0 ? adjacent : lanes.indexOf(null);
}
