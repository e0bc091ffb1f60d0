/** Requests to the server with the bearer token. Every failure is an `ApiError`. */

import { buildUrl, type Query } from "../lib/url";
import { ApiError, readApiError } from "./api-error";
import { setToken, token } from "./token";

const TIMEOUT_MS = 20_000;

type Headers = Record<string, string>;

interface RequestOptions {
  query?: Query | undefined;
  body?: unknown;
  headers?: Headers | undefined;
  signal?: AbortSignal | undefined;
  timeoutMs?: number | undefined;
}

/** Sends one request with the token and without cookies. */
export function fetchWithToken(url: string, init: Omit<RequestInit, "headers"> & { headers: Headers }): Promise<Response> {
  const authorization: Headers = token.value === null ? {} : { Authorization: `Bearer ${token.value}` };
  return fetch(url, { ...init, headers: { ...authorization, ...init.headers }, cache: "no-store", credentials: "omit" });
}

/** The error of a refused response. A token that is no longer valid is dropped, and the page asks for another one. */
export function refusedResponse(response: Response): Promise<ApiError> {
  if (response.status === 401) setToken(null);
  return readApiError(response);
}

async function request<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
  const { body, timeoutMs = TIMEOUT_MS } = options;
  const timeout = AbortSignal.timeout(timeoutMs);
  const contentType: Headers = body === undefined ? {} : { "Content-Type": "application/json" };
  let response: Response;
  try {
    response = await fetchWithToken(buildUrl(path, options.query), {
      method,
      headers: { Accept: "application/json", ...contentType, ...options.headers },
      signal: options.signal ? AbortSignal.any([options.signal, timeout]) : timeout,
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    const what = timeout.aborted ? `did not answer within ${timeoutMs / 1000} s` : "cannot be reached";
    throw new ApiError(`The server ${what}. Is 'stretto serve' still running?`, { status: 0, cause: error });
  }
  if (!response.ok) throw await refusedResponse(response);
  return (response.status === 204 ? null : await response.json()) as T;
}

export const api = {
  get: <T>(path: string, query?: Query, signal?: AbortSignal) => request<T>("GET", path, { query, signal }),
  post: <T>(path: string, body?: unknown, headers?: Headers, timeoutMs?: number) =>
    request<T>("POST", path, { body, headers, timeoutMs }),
  put: <T>(path: string, body: unknown) => request<T>("PUT", path, { body }),
  patch: <T>(path: string, body: unknown, headers?: Headers) => request<T>("PATCH", path, { body, headers }),
  delete: (path: string) => request<null>("DELETE", path),
};
