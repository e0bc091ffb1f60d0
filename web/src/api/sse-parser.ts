/** Parses server-sent events out of chunks of text, wherever the chunks are cut. */

export interface ServerSentEvent {
  event: string;
  id: string | null;
  data: string;
}

/** Bounds the memory that an event without an end can take. */
const MAX_LENGTH = 64 << 20;

export class SseParser {
  private incomplete = "";

  /** Returns the events that this chunk completes. Comments, which the server sends as keep-alives, give none. */
  push(chunk: string): ServerSentEvent[] {
    const text = (this.incomplete + chunk).replaceAll("\r\n", "\n");
    const end = text.lastIndexOf("\n\n");
    if (end < 0) {
      if (text.length > MAX_LENGTH) throw new Error("An event of the stream has no end.");
      this.incomplete = text;
      return [];
    }
    this.incomplete = text.slice(end + 2);
    return text
      .slice(0, end)
      .split("\n\n")
      .map(parseEvent)
      .filter((event) => event !== null);
  }
}

function parseEvent(block: string): ServerSentEvent | null {
  const data: string[] = [];
  let event = "message";
  let id: string | null = null;
  for (const line of block.split("\n")) {
    const [field, value] = parseField(line);
    if (field === "data") data.push(value);
    else if (field === "event") event = value;
    else if (field === "id") id = value;
  }
  return data.length > 0 ? { event, id, data: data.join("\n") } : null;
}

/** The field's name is empty for a comment. One space after the colon is not part of the value. */
function parseField(line: string): [field: string, value: string] {
  const colon = line.indexOf(":");
  if (colon < 0) return [line, ""];
  return [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, "")];
}
