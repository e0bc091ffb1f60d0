/** Everything about one job, kept fresh by the stream. */

import { useEffect, useRef } from "preact/hooks";
import { api } from "../api/client";
import type { Event, EventPage, Explanation, Job, Series, Sizes } from "../api/types";
import { Curves } from "../lib/curves";
import { events, generation, isRemoved, learn, leaving, line, onPoints, stream } from "./live";
import { ask, useLoad, useThrottled, type Loaded } from "./load";

const POINTS = 10_000;
const EVENT_PAGES = 5;
const REFRESH_MS = 500;

export interface Whole {
  job: Loaded<Job>;
  explanation: Loaded<Explanation>;
  sizes: Loaded<Sizes>;
  events: readonly Event[];
}

export function useJob(id: string): Whole {
  const path = `/v1/jobs/${encodeURIComponent(id)}`;
  const job = useLoad(id, async (signal) => {
    const found = await api.get<Job>(path, {}, signal);
    learn([found]);
    return found;
  });
  const explanation = useLoad(id, (signal) => api.get<Explanation>(`${path}/explanation`, {}, signal));
  const sizes = useLoad(id, (signal) => api.get<Sizes>(`${path}/sizes`, {}, signal));
  const past = useLoad(id, (signal) => allEvents(path, signal));
  const refresh = useThrottled(() => {
    if (isRemoved(id) || leaving.has(id)) return;
    for (const one of [job, explanation, sizes]) one.again();
  }, REFRESH_MS);

  useEffect(() => stream.watch(id), [id]);
  const last = past.value?.at(-1)?.id ?? 0;
  const since = events.value.filter((event) => event.job === id && event.id > last);
  const now = line(id)?.value;
  useEffect(() => {
    if (since.length > 0) refresh();
  }, [since.at(-1)?.id, now?.version, now?.wanted, now?.reason]);
  return { job, explanation, sizes, events: [...(past.value ?? []), ...since] };
}

async function allEvents(path: string, signal: AbortSignal): Promise<Event[]> {
  const found: Event[] = [];
  for (let page = 0; page < EVENT_PAGES; page++) {
    const { items, next } = await api.get<EventPage>(`${path}/events`, { after: found.at(-1)?.id ?? 0, limit: 1000 }, signal);
    found.push(...items);
    if (items.length < 1000 || next === null) break;
  }
  return found;
}

export interface Plot {
  curves: Curves;
  /** Calls back after every change of the curves. */
  changes: (call: () => void) => () => void;
}

/** The curves: loaded once, then appended to by the stream; loaded again after a gap. */
export function useCurves(id: string, named: (names: string[]) => void): Plot {
  const held = useRef<{ plot: Plot; tell: () => void } | null>(null);
  held.current ??= make();
  const { plot, tell } = held.current;
  const gap = generation.value;
  useEffect(() => {
    const control = ask(id);
    let loaded = false;
    let early: Parameters<Curves["append"]>[0][] = [];
    const show = () => {
      named(plot.curves.names());
      tell();
    };
    const stop = onPoints((points) => {
      if (points.job !== id) return;
      if (!loaded) early.push(points);
      else {
        plot.curves.append(points);
        show();
      }
    });
    const load = (): void => {
      api.get<Series>(`/v1/jobs/${encodeURIComponent(id)}/metrics`, { points: POINTS }, control.signal).then(
        (series) => {
          plot.curves.clear();
          plot.curves.append(series);
          // What came meanwhile may be in the answer already: the same step again changes nothing.
          for (const part of early) if ((part.step[0] ?? 0) >= (plot.curves.step.at(-1) ?? 0)) plot.curves.append(part);
          early = [];
          loaded = true;
          show();
        },
        () => !control.signal.aborted && setTimeout(load, 3_000),
      );
    };
    load();
    return () => {
      control.abort();
      stop();
    };
  }, [id, gap]);
  return plot;
}

function make(): { plot: Plot; tell: () => void } {
  const listeners = new Set<() => void>();
  const changes = (call: () => void) => {
    listeners.add(call);
    return () => void listeners.delete(call);
  };
  return { plot: { curves: new Curves(), changes }, tell: () => listeners.forEach((call) => call()) };
}
