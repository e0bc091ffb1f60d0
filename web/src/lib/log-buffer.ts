/** The part of a log that the page keeps. */

import type { LogPart } from "../api/types";

/** Above this many characters, the start is dropped: whole lines, or characters if there is no line break. */
export const MAX_LENGTH = 512 * 1024;

export interface Log {
  text: string;
  sources: string[];
  /** What to know about the text, or the error of the last request. */
  note: string;
  ended: boolean;
  /** False until the first part has arrived, which replaces whatever is shown. */
  loaded: boolean;
}

export const EMPTY_LOG: Log = { text: "", sources: [], note: "", ended: false, loaded: false };

export function appendLog(log: Log, part: LogPart): Log {
  const text = keepEnd(log.loaded ? log.text + part.text : part.text);
  return { text, sources: part.sources, note: describePart(part, !log.loaded), ended: part.end, loaded: true };
}

function keepEnd(text: string): string {
  if (text.length <= MAX_LENGTH) return text;
  const start = text.length - MAX_LENGTH;
  return text.slice(Math.max(start, text.indexOf("\n", start) + 1));
}

function describePart(part: LogPart, first: boolean): string {
  if (part.cut) return "The log is longer than the server keeps: its middle is missing.";
  return first && part.offset > 0 ? "Only the end of the log is shown." : "";
}
