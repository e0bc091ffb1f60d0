import { describe, expect, test } from "vitest";
import { ParseError, parseEnvironment, splitCommand } from "../../src/lib/command-line";

describe("splitCommand", () => {
  test.each([
    ["python train.py --lr 0.1", ["python", "train.py", "--lr", "0.1"]],
    ["  a \t b\n", ["a", "b"]],
    ["", []],
    ["'a b' c", ["a b", "c"]],
    [`"it's" '"quoted"'`, ["it's", '"quoted"']],
    ["--name='a b'c", ["--name=a bc"]],
    ["'' x", ["", "x"]],
    ["a\\ b", ["a b"]],
    ["a \\\n b", ["a", "b"]],
    ['"a\\"b" "a\\$b"', ['a"b', "a$b"]],
    ["trailing\\", ["trailing\\"]],
  ])("splits %j as a POSIX shell does", (line, args) => {
    expect(splitCommand(line)).toEqual(args);
  });

  test("expands nothing: no shell ever sees the arguments", () => {
    expect(splitCommand("echo $HOME *.py `id` a|b")).toEqual(["echo", "$HOME", "*.py", "`id`", "a|b"]);
  });

  test("keeps a backslash between single quotes, and before other characters between double quotes", () => {
    expect(splitCommand(`'a\\b' "a\\b"`)).toEqual(["a\\b", "a\\b"]);
  });

  test.each([
    ["python 'train.py", "'"],
    ['python "train.py', '"'],
    [`'a "b`, "'"],
    [`"a\\"`, '"'],
  ])("refuses %j and names the quote that is not closed", (line, quote) => {
    expect(() => splitCommand(line)).toThrow(ParseError);
    expect(() => splitCommand(line)).toThrow(`A ${quote} is not closed`);
  });
});

describe("parseEnvironment", () => {
  test("reads one variable per line and skips comments and blank lines", () => {
    expect(parseEnvironment("A=1\n\n # no\nB=x=y \n")).toEqual({ A: "1", B: "x=y " });
  });

  test.each(["A", "=1", "A=1\nnothing"])("refuses %j", (text) => {
    expect(() => parseEnvironment(text)).toThrow("is not NAME=value");
  });
});
