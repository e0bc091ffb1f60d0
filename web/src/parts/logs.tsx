/** A job's logs, followed while it runs. */

import { useEffect, useRef, useState } from "preact/hooks";
import { api, Refusal, sentence } from "../api/client";
import type { LogPart } from "../api/types";
import { ask } from "../state/load";

const TAIL = 65_536;
const POLL_MS = 1_000;
/** What the page keeps: the beginning goes when more comes. */
const MOST = 512 * 1024;

/** `active`: it has processes now. A job that waits has no more to say for the moment, and goes on when it runs. */
export function Logs({ job, active }: { job: string; active: boolean }) {
  const [source, setSource] = useState("console");
  const [follow, setFollow] = useState(true);
  const { text, sources, note, ended } = useLog(job, source, active);
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text, follow]);
  const scrolled = () => {
    const element = box.current!;
    const below = element.scrollHeight - element.scrollTop - element.clientHeight;
    if (follow && below > 40) setFollow(false);
    else if (!follow && below < 4) setFollow(true);
  };
  return (
    <section class="card logs" aria-labelledby="logs-title">
      <div class="row head">
        <h3 id="logs-title">Logs</h3>
        <label class="inline">
          <span class="hidden">source</span>
          <select value={source} onChange={(event) => setSource(event.currentTarget.value)}>
            {[...new Set(["console", source, ...sources])].map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
        <label class="inline">
          <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} /> follow
        </label>
        {ended && !active && text && <span class="muted">the end</span>}
      </div>
      {note && <p class="note">{note}</p>}
      <pre ref={box} tabIndex={0} onScroll={scrolled} aria-label={`log of ${source}`}>
        {text || (note ? "" : "Nothing has been printed yet.")}
      </pre>
    </section>
  );
}

interface Log {
  text: string;
  sources: string[];
  note: string;
  ended: boolean;
}

const NOTHING: Log = { text: "", sources: [], note: "", ended: false };

function useLog(job: string, source: string, active: boolean): Log {
  const [log, setLog] = useState(NOTHING);
  useEffect(() => {
    const control = ask(job);
    let next: number | null = null;
    let timer: ReturnType<typeof setTimeout>;
    const load = async (): Promise<void> => {
      let again = true;
      try {
        if (document.visibilityState === "visible" || next === null) {
          const part: LogPart = await api.get("/v1/jobs/" + job + "/logs", next === null ? { source, tail: TAIL } : { source, offset: next }, control.signal);
          const first = next === null;
          next = part.next;
          again = !part.end;
          setLog((old) => added(first ? "" : old.text, part, first));
        }
      } catch (error) {
        if (control.signal.aborted) return;
        if (error instanceof Refusal && (error.status === 404 || error.status === 422)) {
          setLog((old) => ({ ...old, note: "This job has no such log yet." }));
        } else {
          setLog((old) => ({ ...old, note: `${sentence(error)} Trying again.` }));
        }
      }
      if (again && !control.signal.aborted) timer = setTimeout(() => void load(), POLL_MS);
    };
    void load();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [job, source, active]);
  return log;
}

function added(before: string, part: LogPart, first: boolean): Log {
  let text = before + part.text;
  if (text.length > MOST) text = text.slice(text.indexOf("\n", text.length - MOST) + 1);
  const note = part.cut ? "The log was longer than the server keeps: its middle is missing." : first && part.offset > 0 ? "Only the end of the log is shown." : "";
  return { text, sources: part.sources, note, ended: part.end };
}
