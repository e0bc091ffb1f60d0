/** Failed requests. Every message is a sentence that the page can show. */

import type { Problem } from "./types";

/** What is wrong with one field of a request. */
export interface FieldError {
  /** Path of the field, such as `elastic.max`. */
  at: string;
  text: string;
}

export class ApiError extends Error {
  /** HTTP status; 0 if the server could not be reached. */
  readonly status: number;
  readonly fieldErrors: FieldError[];

  constructor(message: string, details: { status: number; fieldErrors?: FieldError[]; cause?: unknown }) {
    super(message, { cause: details.cause });
    this.status = details.status;
    this.fieldErrors = details.fieldErrors ?? [];
  }
}

export function errorMessage(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Reads the problem document of a refused request. Falls back to the status line if the body is something else. */
export async function readApiError(response: Response): Promise<ApiError> {
  const problem = parseProblem(await response.text().catch(() => ""));
  const message =
    typeof problem.detail === "string" ? problem.detail : `The server answered ${response.status} ${response.statusText}.`;
  const errors = Array.isArray(problem.errors) ? problem.errors : [];
  const fieldErrors = errors.map(({ at, text }) => ({ at: String(at ?? ""), text: String(text ?? "") }));
  return new ApiError(message, { status: response.status, fieldErrors });
}

/** A proxy in between may answer with a page of its own: then nothing is known but the status. */
function parseProblem(text: string): Partial<Problem> {
  try {
    const parsed: unknown = JSON.parse(text);
    return typeof parsed === "object" && parsed !== null ? parsed : {};
  } catch {
    return {};
  }
}
