/** The current route, following the browser's address. */

import { computed, signal } from "@preact/signals";
import { parseRoute, parseToken } from "../lib/route";

const path = signal(location.hash.slice(1));
addEventListener("hashchange", () => {
  path.value = location.hash.slice(1);
});

export const route = computed(() => parseRoute(path.value));

export function navigate(to: string): void {
  location.hash = to;
}

/** Takes the token out of the address, so that it stays neither in the address bar nor in the history. */
export function takeTokenFromUrl(): string | null {
  if (!location.hash.startsWith("#token=")) return null;
  const token = parseToken(location.hash);
  history.replaceState(null, "", location.pathname);
  path.value = "";
  return token;
}
