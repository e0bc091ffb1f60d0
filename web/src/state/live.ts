/** What the server last said, as signals: views read them and are drawn again when they change. */

import { batch, signal, type Signal } from "@preact/signals";
import { api, token } from "../api/client";
import type { Frame } from "../api/frames";
import { Stream, type Connection } from "../api/stream";
import type { Allocation, Event, JobSummary, Overview, Series, Token } from "../api/types";

const MOST_LINES = 5_000;
const MOST_EVENTS = 300;
const OVERVIEW_MS = 1_000;

export const connection = signal<Connection>({ state: "connecting" });
export const overview = signal<Overview | null>(null);
export const allocation = signal<Allocation | null>(null);
export const me = signal<Token | null>(null);
/** Newest last. */
export const events = signal<readonly Event[]>([]);
/** Grows when what is shown may have gaps and has to be loaded again: after a reconnection or a reset. */
export const generation = signal(0);
/** Grows when a job is heard of for the first time or removed. */
export const arrivals = signal(0);
/** One signal a job, so that a change draws one line and not the list. */
const lines = new Map<string, Signal<JobSummary>>();
const removed = new Set<string>();
/** Jobs whose removal was asked for: nothing of theirs is loaded again meanwhile. */
export const leaving = new Set<string>();

export type Points = Pick<Series, "job" | "step" | "t" | "workers" | "series" | "next">;
const pointListeners = new Set<(points: Points) => void>();

/** The server's clock may differ from this machine's. */
let skewS = 0;
export const now = (): number => Date.now() / 1000 + skewS;
/** Follows the clock, once a second. */
export const clock = signal(now());
setInterval(() => {
  clock.value = now();
}, 1000);

export function line(id: string): Signal<JobSummary> | undefined {
  return lines.get(id);
}

export function allLines(): Iterable<Signal<JobSummary>> {
  return lines.values();
}

export function onPoints(call: (points: Points) => void): () => void {
  pointListeners.add(call);
  return () => pointListeners.delete(call);
}

/** Takes lines from whoever loaded them. A line that is older than the known one changes nothing. */
export function learn(items: readonly JobSummary[]): void {
  batch(() => {
    let arrived = false;
    for (const item of items) {
      const known = lines.get(item.id);
      if (known) {
        if (item.version >= known.value.version) known.value = item;
      } else if (!removed.has(item.id)) {
        lines.set(item.id, signal(item));
        arrived = true;
      }
    }
    for (const id of lines.keys()) {
      if (lines.size <= MOST_LINES) break;
      lines.delete(id);
    }
    if (arrived) arrivals.value++;
  });
}

export function forget(id: string): void {
  if (removed.size > MOST_LINES) removed.clear();
  removed.add(id);
  leaving.delete(id);
  if (lines.delete(id)) arrivals.value++;
}

export function isRemoved(id: string): boolean {
  return removed.has(id);
}

export const may = (scope: "submitter" | "admin"): boolean => {
  const mine = me.value?.scope;
  return mine === "admin" || mine === scope;
};

export const stream = new Stream({ frame: take, connection: connected });

function connected(next: Connection): void {
  batch(() => {
    // Lines, curves and the allocation are not resumed, only events are: load again what is shown.
    if (next.state === "live" && connection.value.state === "lost") {
      generation.value++;
      void loadHead({ all: true });
    }
    connection.value = next;
  });
}

function take(frame: Frame): void {
  const value: unknown = JSON.parse(frame.data);
  batch(() => {
    switch (frame.event) {
      case "hello":
        skewS = (value as { t: number }).t - Date.now() / 1000;
        break;
      case "event":
        hear(value as Event);
        break;
      case "jobs":
        learn((value as { items: JobSummary[] }).items);
        soon();
        break;
      case "points":
        for (const call of pointListeners) call(value as Points);
        break;
      case "allocation":
        allocation.value = value as Allocation;
        soon();
        break;
      case "reset":
        events.value = [];
        generation.value++;
        void loadHead({ all: true });
        break;
    }
  });
}

function hear(event: Event): void {
  if (event.kind === "removed" && event.job !== null) forget(event.job);
  if (event.id > (events.value.at(-1)?.id ?? 0)) events.value = [...events.value.slice(-MOST_EVENTS), event];
  soon();
}

let timer: ReturnType<typeof setTimeout> | null = null;

/** The head of the page, at most once in a while however much happens. */
function soon(): void {
  timer ??= setTimeout(() => {
    timer = null;
    void loadHead();
  }, OVERVIEW_MS);
}

export async function loadHead({ all = false } = {}): Promise<void> {
  if (token.value === null) return;
  try {
    const [head, shares] = await Promise.all([
      api.get<Overview>("/v1/overview"),
      all || allocation.value === null ? api.get<Allocation>("/v1/allocations") : null,
    ]);
    batch(() => {
      overview.value = head;
      if (shares !== null) allocation.value = shares;
    });
  } catch {
    // The stream says what is wrong with the connection, and this is tried again with the next change.
  }
}

/** With a token: who am I, what is there, and the stream. Throws if the token is refused. */
export async function enter(): Promise<void> {
  me.value = await api.get<Token>("/v1/tokens/me");
  void stream.run();
  await loadHead();
}

/** Everything of the last token is forgotten. */
export function leave(): void {
  lines.clear();
  removed.clear();
  batch(() => {
    connection.value = { state: "connecting" };
    overview.value = null;
    allocation.value = null;
    me.value = null;
    events.value = [];
    arrivals.value++;
  });
}
