export type Query = Record<string, string | number | boolean | null | undefined>;

/** Appends a query string. Parameters that are null, undefined or empty are left out. */
export function buildUrl(path: string, query: Query = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") search.set(name, String(value));
  }
  const text = search.toString();
  return text ? `${path}?${text}` : path;
}
