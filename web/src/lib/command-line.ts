/** Parses what people type into the submit form: a command line and environment variables. */

export class ParseError extends Error {}

/** White space, '…', "…", an escaped character, other characters, or a quote or backslash that stands alone. */
const TOKEN = /(?<space>\s+)|'(?<single>[^']*)'|"(?<double>(?:\\[\s\S]|[^"\\])*)"|\\(?<escaped>[\s\S])|[^\s'"\\]+|["'\\]/g;

/**
 * Splits a command line into arguments by the quoting rules of a POSIX shell. Nothing else of a shell applies: variables and
 * globs stay as they are typed.
 */
export function splitCommand(line: string): string[] {
  const args: string[] = [];
  let current: string | null = null;
  for (const match of line.matchAll(TOKEN)) {
    const text = tokenText(match);
    if (text !== null) current = (current ?? "") + text;
    else if (match.groups!.space !== undefined) {
      if (current !== null) args.push(current);
      current = null;
    }
  }
  return current === null ? args : [...args, current];
}

/** What a token adds to its argument; null for white space and for an escaped line break, which add none. */
function tokenText({ 0: token, groups }: RegExpMatchArray): string | null {
  const { space, single, double, escaped } = groups!;
  if (token === "'" || token === '"') throw new ParseError(`A ${token} is not closed: add the missing ${token}.`);
  if (space !== undefined || escaped === "\n") return null;
  if (double !== undefined) return unescapeDoubleQuoted(double);
  return single ?? escaped ?? token;
}

/** Between double quotes, a backslash escapes only these characters; an escaped line break disappears. */
function unescapeDoubleQuoted(text: string): string {
  return text.replace(/\\(["\\$`\n])/g, (_, char: string) => (char === "\n" ? "" : char));
}

/** Parses `NAME=value` lines. Skips blank lines and lines that start with #. */
export function parseEnvironment(text: string): Record<string, string> {
  const variables: Record<string, string> = {};
  for (const line of text.split("\n")) {
    if (!line.trim() || line.trim().startsWith("#")) continue;
    const equals = line.indexOf("=");
    if (equals < 1) throw new ParseError(`'${line.trim().slice(0, 40)}' is not NAME=value: write one variable per line.`);
    variables[line.slice(0, equals).trim()] = line.slice(equals + 1);
  }
  return variables;
}
