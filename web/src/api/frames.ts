/** Server-sent events out of chunks of text, wherever the chunks are cut. No I/O. */

export interface Frame {
  event: string;
  id: string | null;
  data: string;
}

/** A frame that never ends would fill the memory: a stream with one this long is broken. */
const LONGEST = 64 << 20;

export class Frames {
  private rest = "";

  /** The frames that are complete with this chunk. Comments (the server's sign of life) give none. */
  take(chunk: string): Frame[] {
    const text = (this.rest + chunk).replaceAll("\r\n", "\n");
    const end = text.lastIndexOf("\n\n");
    if (end < 0) {
      if (text.length > LONGEST) throw new Error("a frame of the stream has no end");
      this.rest = text;
      return [];
    }
    this.rest = text.slice(end + 2);
    return text
      .slice(0, end)
      .split("\n\n")
      .map(parse)
      .filter((frame) => frame !== null);
  }
}

function parse(block: string): Frame | null {
  const data: string[] = [];
  let event = "message";
  let id: string | null = null;
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon === 0) continue;
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (name === "data") data.push(value);
    else if (name === "event") event = value;
    else if (name === "id") id = value;
  }
  return data.length > 0 ? { event, id, data: data.join("\n") } : null;
}
