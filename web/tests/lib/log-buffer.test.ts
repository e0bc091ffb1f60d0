import { expect, test } from "vitest";
import type { LogPart } from "../../src/api/types";
import { appendLog, EMPTY_LOG, MAX_LENGTH } from "../../src/lib/log-buffer";

const part = (text: string, fields: Partial<LogPart> = {}): LogPart => ({
  source: "console",
  sources: ["console", "w0"],
  offset: 0,
  next: text.length,
  text,
  end: false,
  cut: false,
  ...fields,
});

test("parts are appended", () => {
  const log = appendLog(appendLog(EMPTY_LOG, part("a\n")), part("b\n", { offset: 2, end: true }));
  expect(log).toMatchObject({ text: "a\nb\n", sources: ["console", "w0"], note: "", ended: true });
});

test("the first part replaces what another source has shown", () => {
  const other = { ...appendLog(EMPTY_LOG, part("other\n")), loaded: false };
  expect(appendLog(other, part("mine\n")).text).toBe("mine\n");
});

test("a first part that does not start at the beginning is noted, a later one is not", () => {
  const first = appendLog(EMPTY_LOG, part("z", { offset: 100 }));
  expect(first.note).toBe("Only the end of the log is shown.");
  expect(appendLog(first, part("y", { offset: 101 })).note).toBe("");
});

test("a log that the server has cut is noted", () => {
  expect(appendLog(EMPTY_LOG, part("z", { cut: true })).note).toContain("its middle is missing");
});

test("the start is dropped line by line when the log gets long", () => {
  const line = `${"x".repeat(999)}\n`;
  const log = appendLog(appendLog(EMPTY_LOG, part("first\n")), part(line.repeat(600)));
  expect(log.text.length).toBeLessThanOrEqual(MAX_LENGTH);
  expect(log.text.length % 1000).toBe(0);
  expect(log.text).not.toContain("first");
});

test("a log without line breaks is bounded too", () => {
  expect(appendLog(EMPTY_LOG, part("x".repeat(MAX_LENGTH + 10))).text.length).toBe(MAX_LENGTH);
});
