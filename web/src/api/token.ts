/** The bearer token. It is kept for this tab only: it is gone when the tab is closed, and no other site can read it. */

import { signal } from "@preact/signals";

const STORAGE_KEY = "stretto-token";

export const token = signal<string | null>(sessionStorage.getItem(STORAGE_KEY));

export function setToken(value: string | null): void {
  if (value === null) sessionStorage.removeItem(STORAGE_KEY);
  else sessionStorage.setItem(STORAGE_KEY, value);
  token.value = value;
}
