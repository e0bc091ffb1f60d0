/** Loading for views: the last value stays while it is loaded again, and a failure is kept beside it. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, errorMessage } from "../api/api-error";
import { streamGaps } from "./server-state";

export interface Loaded<T> {
  value: T | null;
  error: ApiError | null;
  reload: () => void;
}

/** Requests under way, by key. */
const pending = new Map<string, Set<AbortController>>();

/** An abort controller that `abortRequests(key)` aborts too. Whoever starts a request aborts it in the end. */
export function startRequest(key: string): AbortController {
  const controller = new AbortController();
  const group = pending.get(key) ?? new Set();
  pending.set(key, group.add(controller));
  controller.signal.addEventListener("abort", () => {
    group.delete(controller);
    if (group.size === 0 && pending.get(key) === group) pending.delete(key);
  });
  return controller;
}

/** Aborts all requests under this key. Before a job is deleted: the answers that come later would be errors. */
export function abortRequests(key: string): void {
  for (const controller of pending.get(key) ?? []) controller.abort();
}

/** Loads at once, when `key` changes and after every gap of the stream. A null key loads nothing. */
export function useLoad<T>(key: string | null, load: (signal: AbortSignal) => Promise<T>): Loaded<T> {
  const [state, setState] = useState<{ key: string | null; value: T | null; error: ApiError | null }>({
    key,
    value: null,
    error: null,
  });
  const [attempt, setAttempt] = useState(0);
  const latestLoad = useRef(load);
  latestLoad.current = load;
  const gaps = streamGaps.value;
  useEffect(() => {
    if (key === null) return;
    const { signal, abort } = bound(startRequest(key));
    latestLoad.current(signal).then(
      (value) => {
        if (!signal.aborted) setState({ key, value, error: null });
      },
      (reason: unknown) => {
        if (signal.aborted) return;
        const error = reason instanceof ApiError ? reason : new ApiError(errorMessage(reason), { status: 0, cause: reason });
        setState((old) => ({ key, value: old.key === key ? old.value : null, error }));
      },
    );
    return abort;
  }, [key, attempt, gaps]);
  const reload = useCallback(() => setAttempt((old) => old + 1), []);
  const current = state.key === key;
  return { value: current ? state.value : null, error: current ? state.error : null, reload };
}

function bound(controller: AbortController): { signal: AbortSignal; abort: () => void } {
  return { signal: controller.signal, abort: () => controller.abort() };
}

/** Calls back at most once per interval, and always once after the last trigger. */
export function useThrottled(callback: () => void, intervalMs: number): () => void {
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const latestCallback = useRef(callback);
  latestCallback.current = callback;
  useEffect(() => () => clearTimeout(timer.current), []);
  return useCallback(() => {
    timer.current ??= setTimeout(() => {
      timer.current = undefined;
      latestCallback.current();
    }, intervalMs);
  }, [intervalMs]);
}
