/** What the server last reported, as signals: views that read them redraw when they change. */

import { batch, signal } from "@preact/signals";
import { api, fetchWithToken, refusedResponse } from "../api/client";
import { type Connection, EventStream } from "../api/event-stream";
import type { ServerSentEvent } from "../api/sse-parser";
import { token } from "../api/token";
import type { ClusterAllocation, Event, JobSummary, Overview, Series, Token } from "../api/types";
import { JobTable } from "./job-table";

const MAX_JOBS = 5000;
const MAX_EVENTS = 300;
const OVERVIEW_MS = 1000;

export const connection = signal<Connection>({ state: "connecting" });
export const overview = signal<Overview | null>(null);
export const allocation = signal<ClusterAllocation | null>(null);
export const currentToken = signal<Token | null>(null);
/** Oldest first. */
export const events = signal<readonly Event[]>([]);
/** Incremented when the stream may have missed something: views load their data again. */
export const streamGaps = signal(0);
export const jobs = new JobTable(MAX_JOBS);
/** Jobs whose deletion was requested: their data is not loaded again meanwhile. */
export const deleting = new Set<string>();

export type JobPoints = Pick<Series, "job" | "step" | "t" | "workers" | "series" | "next">;
const pointListeners = new Set<(points: JobPoints) => void>();

/** Calls back with new metrics of the watched job. Returns a function that unsubscribes. */
export function onPoints(callback: (points: JobPoints) => void): () => void {
  pointListeners.add(callback);
  return () => pointListeners.delete(callback);
}

let clockSkewS = 0;

/** Seconds since the epoch by the server's clock, which may differ from this machine's. */
export function serverNow(): number {
  return Date.now() / 1000 + clockSkewS;
}

/** `serverNow`, updated once per second. */
export const clock = signal(serverNow());
setInterval(() => {
  clock.value = serverNow();
}, 1000);

export function removeJob(id: string): void {
  deleting.delete(id);
  jobs.remove(id);
}

export function hasScope(scope: "submitter" | "admin"): boolean {
  const granted = currentToken.value?.scope;
  return granted === "admin" || granted === scope;
}

export const stream = new EventStream(
  {
    signedIn: () => token.value !== null,
    open: (url, headers, abortSignal) => fetchWithToken(url, { headers, signal: abortSignal }),
    refused: refusedResponse,
  },
  { onEvent: handleEvent, onConnection: handleConnection },
);
addEventListener("online", () => stream.retryNow());
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") stream.retryNow();
});

function handleConnection(next: Connection): void {
  batch(() => {
    // The stream resumes events only: everything else has to be loaded again.
    if (next.state === "live" && connection.value.state === "lost") reload();
    connection.value = next;
  });
}

function reload(): void {
  streamGaps.value++;
  void loadOverview({ withAllocation: true });
}

function handleEvent(message: ServerSentEvent): void {
  const value: unknown = JSON.parse(message.data);
  batch(() => {
    switch (message.event) {
      case "hello":
        clockSkewS = (value as { t: number }).t - Date.now() / 1000;
        break;
      case "event":
        addEvent(value as Event);
        refreshOverviewSoon();
        break;
      case "jobs":
        jobs.update((value as { items: JobSummary[] }).items);
        refreshOverviewSoon();
        break;
      case "points":
        for (const callback of pointListeners) callback(value as JobPoints);
        break;
      case "allocation":
        allocation.value = value as ClusterAllocation;
        refreshOverviewSoon();
        break;
      case "reset":
        events.value = [];
        reload();
        break;
    }
  });
}

function addEvent(event: Event): void {
  if (event.kind === "removed" && event.job !== null) removeJob(event.job);
  if (event.id > (events.value.at(-1)?.id ?? 0)) events.value = [...events.value.slice(-MAX_EVENTS), event];
}

let overviewTimer: ReturnType<typeof setTimeout> | undefined;

/** Loads the overview at most once per interval, however much happens. */
function refreshOverviewSoon(): void {
  if (overviewTimer !== undefined) return;
  overviewTimer = setTimeout(() => {
    overviewTimer = undefined;
    void loadOverview();
  }, OVERVIEW_MS);
}

export async function loadOverview({ withAllocation = false } = {}): Promise<void> {
  if (token.value === null) return;
  try {
    const [newOverview, newAllocation] = await Promise.all([
      api.get<Overview>("/v1/overview"),
      withAllocation || allocation.value === null ? api.get<ClusterAllocation>("/v1/allocations") : null,
    ]);
    batch(() => {
      overview.value = newOverview;
      if (newAllocation !== null) allocation.value = newAllocation;
    });
  } catch {
    // The stream reports a lost connection, and the next change loads the overview again.
  }
}

/** Checks the token, starts the stream and loads the overview. Throws if the server refuses the token. */
export async function signIn(): Promise<void> {
  currentToken.value = await api.get<Token>("/v1/tokens/me");
  void stream.run();
  await loadOverview();
}

/** Drops everything that the last token gave access to. */
export function clearState(): void {
  stream.disconnect();
  batch(() => {
    jobs.clear();
    connection.value = { state: "connecting" };
    overview.value = null;
    allocation.value = null;
    currentToken.value = null;
    events.value = [];
  });
}
