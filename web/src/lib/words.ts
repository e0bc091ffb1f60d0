/** A command line as an argument list, by the quoting rules of a POSIX shell and nothing else: no variables, no globs. */

export class Unbalanced extends Error {}

export function split(line: string): string[] {
  const words: string[] = [];
  let word: string | null = null;
  let quote = "";
  for (let at = 0; at < line.length; at++) {
    const letter = line[at]!;
    if (quote === "'") {
      if (letter === "'") quote = "";
      else word += letter;
    } else if (letter === "\\" && at + 1 < line.length && (quote === "" || '"\\$`'.includes(line[at + 1]!))) {
      const next = line[++at]!;
      if (next !== "\n") word = (word ?? "") + next;
    } else if (quote === '"') {
      if (letter === '"') quote = "";
      else word += letter;
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      word ??= "";
    } else if (/\s/.test(letter)) {
      if (word !== null) words.push(word);
      word = null;
    } else {
      word = (word ?? "") + letter;
    }
  }
  if (quote) throw new Unbalanced(`a ${quote} is not closed: add another one at the end of the argument`);
  if (word !== null) words.push(word);
  return words;
}

/** `NAME=value` a line; empty lines and lines that begin with # are left out. */
export function environment(text: string): Record<string, string> {
  const found: Record<string, string> = {};
  for (const line of text.split("\n")) {
    if (!line.trim() || line.trim().startsWith("#")) continue;
    const cut = line.indexOf("=");
    if (cut < 1) throw new Unbalanced(`'${line.trim().slice(0, 40)}' is not NAME=value: write one variable a line`);
    found[line.slice(0, cut).trim()] = line.slice(cut + 1);
  }
  return found;
}
