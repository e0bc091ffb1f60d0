/** Where the page is: the part of the address after #, so that the server serves one page and links can be kept. */

import { computed, signal } from "@preact/signals";

export type Route =
  | { view: "cluster" }
  | { view: "jobs" }
  | { view: "job"; id: string }
  | { view: "submit" }
  | { view: "policies" }
  | { view: "unknown"; path: string };

const path = signal(location.hash.slice(1));
addEventListener("hashchange", () => {
  path.value = location.hash.slice(1);
});

export const route = computed<Route>(() => {
  const parts = path.value.split("?")[0]!.split("/").filter(Boolean);
  if (parts.length === 0) return { view: "cluster" };
  if (parts.length === 1 && (parts[0] === "jobs" || parts[0] === "submit" || parts[0] === "policies")) return { view: parts[0] };
  if (parts.length === 2 && parts[0] === "jobs") return { view: "job", id: decodeURIComponent(parts[1]!) };
  return { view: "unknown", path: path.value };
});

export function go(to: string): void {
  location.hash = to;
}

export const jobLink = (id: string): string => `#/jobs/${encodeURIComponent(id)}`;

/** `#token=…` is how `stretto serve` prints the address. It is taken out of the address at once. */
export function tokenOfAddress(): string | null {
  const found = /^#token=([^&]+)/.exec(location.hash);
  if (found === null) return null;
  history.replaceState(null, "", location.pathname);
  path.value = "";
  try {
    return decodeURIComponent(found[1]!);
  } catch {
    return null;
  }
}
