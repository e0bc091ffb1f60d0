/** Colours: one per job, the same in every view, and those of the style sheet for canvases. */

const PALETTE = [
  "#3b7dd8",
  "#e0803a",
  "#2f9e6e",
  "#c94f7c",
  "#8a63d2",
  "#b8912b",
  "#2aa3b8",
  "#d65a4a",
  "#6f8f2f",
  "#a0628f",
  "#4c7f8a",
  "#7b7fd6",
];
const OTHER_TENANTS = "#8b929a";
const MAX_REMEMBERED = PALETTE.length * 20;
/** Palette index by job, least recently used first. */
const assigned = new Map<string, number>();

/**
 * The job's colour. It comes from a hash of the job's id, so it usually survives a reload; it moves on to the next colour
 * while one of the most recently shown jobs has it.
 */
export function jobColour(job: string): string {
  if (job === "other") return OTHER_TENANTS;
  const index = assigned.get(job) ?? freeIndex(job);
  assigned.delete(job);
  assigned.set(job, index);
  for (const oldest of assigned.keys()) {
    if (assigned.size <= MAX_REMEMBERED) break;
    assigned.delete(oldest);
  }
  return PALETTE[index]!;
}

function freeIndex(job: string): number {
  const taken = new Set([...assigned.values()].slice(-(PALETTE.length - 1)));
  let index = fnv1a(job) % PALETTE.length;
  while (taken.has(index)) index = (index + 1) % PALETTE.length;
  return index;
}

function fnv1a(text: string): number {
  let hash = 2_166_136_261;
  for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 16_777_619);
  return hash >>> 0;
}

/** The value of a custom property of the style sheet: canvases follow the colour scheme with it. */
export function cssVariable(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Calls back when the colour scheme changes between light and dark. Returns a function that unsubscribes. */
export function onColourSchemeChange(callback: () => void): () => void {
  const query = matchMedia("(prefers-color-scheme: dark)");
  query.addEventListener("change", callback);
  return () => query.removeEventListener("change", callback);
}
