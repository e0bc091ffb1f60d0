/** Loading for views: the value stays while it is loaded again, and a failure is kept beside it. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Refusal, sentence } from "../api/client";
import { generation } from "./live";

export interface Loaded<T> {
  value: T | null;
  error: Refusal | null;
  again: () => void;
  put: (value: T) => void;
}

/** What is asked for at the moment, by key. */
const open = new Map<string, Set<AbortController>>();

/** A request's control, which `hush` reaches too. Whoever takes one aborts it in the end. */
export function ask(key: string): AbortController {
  const control = new AbortController();
  const beside = open.get(key) ?? new Set();
  open.set(key, beside.add(control));
  control.signal.addEventListener("abort", () => {
    beside.delete(control);
    if (beside.size === 0 && open.get(key) === beside) open.delete(key);
  });
  return control;
}

/** Gives up all that is asked for under this key: it is about to go, and an answer that comes later would be an error. */
export function hush(key: string): void {
  for (const control of open.get(key) ?? []) control.abort();
}

/** Loads at once, when `key` changes and after every gap of the stream; `null` as key loads nothing. */
export function useLoad<T>(key: string | null, load: (signal: AbortSignal) => Promise<T>): Loaded<T> {
  const [state, setState] = useState<{ key: string | null; value: T | null; error: Refusal | null }>({ key, value: null, error: null });
  const [turn, setTurn] = useState(0);
  const latest = useRef(load);
  latest.current = load;
  const gap = generation.value;
  useEffect(() => {
    if (key === null) return;
    const control = ask(key);
    latest.current(control.signal).then(
      (value) => !control.signal.aborted && setState({ key, value, error: null }),
      (reason: unknown) => {
        if (control.signal.aborted) return;
        const error = reason instanceof Refusal ? reason : new Refusal(0, "no answer", sentence(reason));
        setState((old) => ({ key, value: old.key === key ? old.value : null, error }));
      },
    );
    return () => control.abort();
  }, [key, turn, gap]);
  const again = useCallback(() => setTurn((old) => old + 1), []);
  const put = useCallback((value: T) => setState({ key, value, error: null }), [key]);
  const mine = state.key === key;
  return { value: mine ? state.value : null, error: mine ? state.error : null, again, put };
}

/** Calls at most once in `ms`, and always once after the last trigger. */
export function useThrottled(call: () => void, ms: number): () => void {
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  const latest = useRef(call);
  latest.current = call;
  useEffect(() => () => void (timer.current && clearTimeout(timer.current)), []);
  return useCallback(() => {
    timer.current ??= setTimeout(() => {
      timer.current = null;
      latest.current();
    }, ms);
  }, [ms]);
}
