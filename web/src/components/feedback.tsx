/** What stands in the place of data: nothing there, still loading, failed. */

import type { ComponentChildren } from "preact";
import { ApiError } from "../api/api-error";

export function EmptyState({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

/** The error with its field errors, and a button if there is something to retry. */
export function ErrorMessage({ error, onRetry }: { error: Error; onRetry?: () => void }) {
  const fieldErrors = error instanceof ApiError ? error.fieldErrors : [];
  return (
    <div class="error-box" role="alert">
      <p>{error.message}</p>
      {fieldErrors.length > 0 && (
        <ul>
          {fieldErrors.map(({ at, text }) => (
            <li key={at + text}>
              <code>{at}</code> {text}
            </li>
          ))}
        </ul>
      )}
      {onRetry && (
        <button type="button" onClick={onRetry}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <p class="loading" role="status">
      Loading {what} …
    </p>
  );
}
