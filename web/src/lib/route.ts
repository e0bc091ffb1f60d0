/** Routes in the fragment of the URL: the server serves one page, and links to views can be bookmarked. */

export type Route =
  | { view: "cluster" }
  | { view: "jobs" }
  | { view: "job"; id: string }
  | { view: "submit" }
  | { view: "policies" }
  | { view: "unknown"; path: string };

/** The route that a URL fragment (without #) names. */
export function parseRoute(path: string): Route {
  const [first, second, ...rest] = path.split("?")[0]!.split("/").filter(Boolean);
  if (first === undefined) return { view: "cluster" };
  if (second === undefined && (first === "jobs" || first === "submit" || first === "policies")) return { view: first };
  const id = second !== undefined && first === "jobs" && rest.length === 0 ? decode(second) : null;
  return id === null ? { view: "unknown", path } : { view: "job", id };
}

export function jobHref(id: string): string {
  return `#/jobs/${encodeURIComponent(id)}`;
}

/** The token in a URL fragment such as `#token=st_…`, which is how `stretto serve` prints the address; null if there is none. */
export function parseToken(fragment: string): string | null {
  const match = /^#token=([^&]+)/.exec(fragment);
  return match === null ? null : decode(match[1]!);
}

function decode(text: string): string | null {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}
