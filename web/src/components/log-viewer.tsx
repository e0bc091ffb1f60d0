/** A job's logs, followed while it runs. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, errorMessage } from "../api/api-error";
import { api } from "../api/client";
import type { LogPart } from "../api/types";
import { appendLog, EMPTY_LOG, type Log } from "../lib/log-buffer";
import { startRequest } from "../state/use-load";

const TAIL_BYTES = 65_536;
const POLL_MS = 1000;
/** Distance from the end, in pixels: beyond the first, following stops; within the second, it starts again. */
const UNFOLLOW_PX = 40;
const FOLLOW_PX = 4;

/** `active`: the job has processes. The log of a queued or paused job is read again when the job runs. */
export function LogViewer({ job, active }: { job: string; active: boolean }) {
  const [source, setSource] = useState("console");
  const [follow, setFollow] = useState(true);
  const { text, sources, note, ended } = useLog(job, source, active);
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text, follow]);
  const handleScroll = () => {
    const element = box.current!;
    const below = element.scrollHeight - element.scrollTop - element.clientHeight;
    if (follow && below > UNFOLLOW_PX) setFollow(false);
    else if (!follow && below < FOLLOW_PX) setFollow(true);
  };
  return (
    <section class="card logs" aria-labelledby="logs-title">
      <div class="row title-row">
        <h3 id="logs-title">Logs</h3>
        <label class="inline">
          <span class="visually-hidden">source</span>
          <select value={source} onChange={(event) => setSource(event.currentTarget.value)}>
            {[...new Set(["console", source, ...sources])].map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <label class="inline">
          <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} /> follow
        </label>
        {ended && !active && text && <span class="muted">end of log</span>}
      </div>
      {note && <p class="note">{note}</p>}
      <pre ref={box} tabIndex={0} onScroll={handleScroll} role="log" aria-live="off" aria-label={`${source} log`}>
        {text || (note ? "" : "No output yet.")}
      </pre>
    </section>
  );
}

function useLog(job: string, source: string, active: boolean): Log {
  const [log, setLog] = useState(EMPTY_LOG);
  useEffect(() => {
    setLog((old) => ({ ...old, loaded: false }));
    const controller = startRequest(job);
    let timer: ReturnType<typeof setTimeout> | undefined;
    let offset: number | null = null;
    const load = async (): Promise<void> => {
      let ended = false;
      try {
        if (document.visibilityState === "visible" || offset === null) {
          const part = await loadPart(job, source, offset, controller.signal);
          offset = part.next;
          ended = part.end;
          setLog((old) => appendLog(old, part));
        }
      } catch (error) {
        if (controller.signal.aborted) return;
        setLog((old) => ({ ...old, note: describeError(error) }));
      }
      if (!ended && !controller.signal.aborted) timer = setTimeout(() => void load(), POLL_MS);
    };
    void load();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [job, source, active]);
  return log;
}

/** From this offset on; without one, the end of the log. */
function loadPart(job: string, source: string, offset: number | null, signal: AbortSignal): Promise<LogPart> {
  const range = offset === null ? { tail: TAIL_BYTES } : { offset };
  return api.get<LogPart>(`/v1/jobs/${job}/logs`, { source, ...range }, signal);
}

function describeError(error: unknown): string {
  const missing = error instanceof ApiError && (error.status === 404 || error.status === 422);
  return missing ? "This log does not exist yet." : `${errorMessage(error)} Trying again.`;
}
