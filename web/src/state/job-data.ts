/** Everything about one job, kept up to date by the stream. */

import { useEffect, useRef } from "preact/hooks";
import { api } from "../api/client";
import type { Event, EventPage, Explanation, JobDetails, Series, Sizes } from "../api/types";
import { type MetricPoints, MetricSeries } from "../lib/metric-series";
import { deleting, events, jobs, onPoints, stream, streamGaps } from "./server-state";
import { type Loaded, startRequest, useLoad, useThrottled } from "./use-load";

const POINTS = 10_000;
const EVENTS_PER_PAGE = 1000;
const MAX_EVENT_PAGES = 5;
const REFRESH_MS = 500;
const RETRY_MS = 3000;

export interface JobData {
  job: Loaded<JobDetails>;
  explanation: Loaded<Explanation>;
  sizes: Loaded<Sizes>;
  /** Oldest first. */
  events: readonly Event[];
}

export function useJob(id: string): JobData {
  const path = `/v1/jobs/${encodeURIComponent(id)}`;
  const job = useLoad(id, async (signal) => {
    const loaded = await api.get<JobDetails>(path, {}, signal);
    jobs.update([loaded]);
    return loaded;
  });
  const explanation = useLoad(id, (signal) => api.get<Explanation>(`${path}/explanation`, {}, signal));
  const sizes = useLoad(id, (signal) => api.get<Sizes>(`${path}/sizes`, {}, signal));
  const pastEvents = useLoad(id, (signal) => loadEvents(path, signal));
  const refresh = useThrottled(() => {
    if (jobs.isRemoved(id) || deleting.has(id)) return;
    for (const resource of [job, explanation, sizes]) resource.reload();
  }, REFRESH_MS);

  useEffect(() => stream.watch(id), [id]);
  const lastLoaded = pastEvents.value?.at(-1)?.id ?? 0;
  const newEvents = events.value.filter((event) => event.job === id && event.id > lastLoaded);
  const hasNewEvents = newEvents.length > 0;
  const summary = jobs.get(id)?.value;
  useEffect(() => {
    if (hasNewEvents) refresh();
  }, [hasNewEvents, refresh, newEvents.at(-1)?.id, summary?.version, summary?.wanted, summary?.reason]);
  return { job, explanation, sizes, events: [...(pastEvents.value ?? []), ...newEvents] };
}

async function loadEvents(path: string, signal: AbortSignal): Promise<Event[]> {
  const loaded: Event[] = [];
  for (let page = 0; page < MAX_EVENT_PAGES; page++) {
    const query = { after: loaded.at(-1)?.id ?? 0, limit: EVENTS_PER_PAGE };
    const { items, next } = await api.get<EventPage>(`${path}/events`, query, signal);
    loaded.push(...items);
    if (items.length < EVENTS_PER_PAGE || next === null) break;
  }
  return loaded;
}

/** A job's metrics, and a subscription to their changes. */
export class MetricSource {
  readonly series = new MetricSeries();
  private readonly listeners = new Set<() => void>();

  /** Calls back after every change. Returns a function that unsubscribes. */
  readonly subscribe = (callback: () => void): (() => void) => {
    this.listeners.add(callback);
    return () => this.listeners.delete(callback);
  };

  notify(): void {
    for (const callback of this.listeners) callback();
  }
}

/** The metrics: loaded once, then appended to by the stream; loaded again after a gap. */
export function useMetrics(id: string, onNames: (names: string[]) => void): MetricSource {
  const ref = useRef<MetricSource | null>(null);
  ref.current ??= new MetricSource();
  const source = ref.current;
  const latestOnNames = useRef(onNames);
  latestOnNames.current = onNames;
  const gaps = streamGaps.value;
  useEffect(() => {
    const controller = startRequest(id);
    const stop = follow(id, source, controller.signal, () => {
      latestOnNames.current(source.series.names());
      source.notify();
    });
    return () => {
      controller.abort();
      stop();
    };
  }, [id, source, gaps]);
  return source;
}

function follow(id: string, source: MetricSource, signal: AbortSignal, changed: () => void): () => void {
  const { series } = source;
  /** What the stream brings while the first answer is on its way; null afterwards. */
  let early: MetricPoints[] | null = [];
  const load = (): void => {
    api.get<Series>(`/v1/jobs/${encodeURIComponent(id)}/metrics`, { points: POINTS }, signal).then(
      (loaded) => {
        series.clear();
        series.append(loaded);
        // These points may be in the answer already: appending the same step again changes nothing.
        for (const points of early ?? []) if ((points.step[0] ?? 0) >= (series.step.at(-1) ?? 0)) series.append(points);
        early = null;
        changed();
      },
      () => !signal.aborted && setTimeout(load, RETRY_MS),
    );
  };
  load();
  return onPoints((points) => {
    if (points.job !== id) return;
    if (early !== null) {
      early.push(points);
      return;
    }
    series.append(points);
    changed();
  });
}
