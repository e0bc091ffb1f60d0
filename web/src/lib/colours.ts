/** A colour for each job: the same on every view and, where neighbours allow it, after every reload. */

const JOBS = [
  "#3b7dd8", "#e0803a", "#2f9e6e", "#c94f7c", "#8a63d2", "#b8912b",
  "#2aa3b8", "#d65a4a", "#6f8f2f", "#a0628f", "#4c7f8a", "#7b7fd6",
];
const OTHER = "#8b929a";
/** As many as the palette has: two jobs share a colour only if that many others were seen in between. */
const recent = new Map<string, number>();

export function colourOf(job: string): string {
  if (job === "other") return OTHER;
  const known = recent.get(job);
  const place = known ?? free(job);
  recent.delete(job);
  recent.set(job, place);
  while (recent.size > JOBS.length * 20) recent.delete(recent.keys().next().value!);
  return JOBS[place]!;
}

function free(job: string): number {
  const taken = new Set([...recent.values()].slice(-(JOBS.length - 1)));
  let place = hash(job) % JOBS.length;
  while (taken.has(place)) place = (place + 1) % JOBS.length;
  return place;
}

function hash(text: string): number {
  let value = 2166136261;
  for (let at = 0; at < text.length; at++) value = Math.imul(value ^ text.charCodeAt(at), 16777619);
  return value >>> 0;
}

/** A custom property of the page's style sheet: canvases follow the colour scheme with it. */
export function styled(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Calls back when light becomes dark or the other way round. Gives what stops that. */
export function onScheme(call: () => void): () => void {
  const query = matchMedia("(prefers-color-scheme: dark)");
  query.addEventListener("change", call);
  return () => query.removeEventListener("change", call);
}
