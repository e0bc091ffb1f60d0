/** Requests with the bearer token. Every failure is a `Refusal` with a sentence that can be shown. */

import { signal } from "@preact/signals";
import type { Problem } from "./types";

const KEY = "stretto-token";
const TIMEOUT_MS = 20_000;

/** In this tab only: it is gone when the tab is closed, and no other site's page can read it. */
export const token = signal<string | null>(sessionStorage.getItem(KEY));

export function keepToken(value: string | null): void {
  if (value === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, value);
  token.value = value;
}

export interface Place {
  at: string;
  text: string;
}

export class Refusal extends Error {
  constructor(
    /** 0 if the server could not be reached at all. */
    readonly status: number,
    readonly title: string,
    detail: string,
    readonly places: Place[] = [],
  ) {
    super(detail);
  }
}

export function sentence(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export type Query = Record<string, string | number | boolean | null | undefined>;

export interface Options {
  query?: Query;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  timeoutMs?: number;
}

export function address(path: string, query: Query = {}): string {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") search.set(key, String(value));
  }
  const text = search.toString();
  return text ? `${path}?${text}` : path;
}

export function authorization(): Record<string, string> {
  return token.value === null ? {} : { Authorization: `Bearer ${token.value}` };
}

async function request<T>(method: string, path: string, options: Options = {}): Promise<T> {
  const { timeoutMs = TIMEOUT_MS } = options;
  const limit = AbortSignal.timeout(timeoutMs);
  const init: RequestInit = {
    method,
    headers: { Accept: "application/json", ...authorization(), ...options.headers },
    signal: options.signal ? AbortSignal.any([options.signal, limit]) : limit,
    cache: "no-store",
    credentials: "omit",
  };
  if (options.body !== undefined) {
    init.body = JSON.stringify(options.body);
    init.headers = { ...init.headers, "Content-Type": "application/json" };
  }
  let answer: Response;
  try {
    answer = await fetch(address(path, options.query), init);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    const why = limit.aborted ? `has not answered within ${timeoutMs / 1000} s` : "cannot be reached";
    throw new Refusal(0, "no answer", `The server ${why}. Is 'stretto serve' still running?`);
  }
  if (!answer.ok) throw await refusal(answer);
  return (answer.status === 204 ? null : await answer.json()) as T;
}

/** What a refused answer says. A token that is no longer valid is forgotten: the page asks for another. */
export async function refusal(answer: Response): Promise<Refusal> {
  const text = await answer.text().catch(() => "");
  let problem: Partial<Problem> = {};
  try {
    problem = JSON.parse(text) as Partial<Problem>;
  } catch {
    // Not from this server: a proxy's page, for instance. The status has to do.
  }
  if (answer.status === 401) keepToken(null);
  const detail = typeof problem.detail === "string" ? problem.detail : `The server answered ${answer.status} ${answer.statusText}`;
  const places = Array.isArray(problem.errors) ? problem.errors.map((one) => ({ at: String(one.at ?? ""), text: String(one.text ?? "") })) : [];
  return new Refusal(answer.status, problem.title ?? answer.statusText, detail, places);
}

export const api = {
  get: <T>(path: string, query?: Query, signal?: AbortSignal) =>
    request<T>("GET", path, { ...(query ? { query } : {}), ...(signal ? { signal } : {}) }),
  post: <T>(path: string, body?: unknown, headers?: Record<string, string>, timeoutMs?: number) =>
    request<T>("POST", path, {
      ...(body === undefined ? {} : { body }),
      ...(headers ? { headers } : {}),
      ...(timeoutMs ? { timeoutMs } : {}),
    }),
  put: <T>(path: string, body: unknown) => request<T>("PUT", path, { body }),
  patch: <T>(path: string, body: unknown, headers?: Record<string, string>) =>
    request<T>("PATCH", path, { body, ...(headers ? { headers } : {}) }),
  delete: (path: string) => request<null>("DELETE", path),
};
