import { expect, test } from "vitest";
import { SseParser } from "../../src/api/sse-parser";

const STREAM = ': hello\n\nevent: jobs\nid: 7\ndata: {"a":1}\n\ndata: one\ndata: two\n\nretry: 5\n\n';
const EVENTS = [
  { event: "jobs", id: "7", data: '{"a":1}' },
  { event: "message", id: null, data: "one\ntwo" },
];

test("a stream in one chunk gives its events; comments and blocks without data give none", () => {
  expect(new SseParser().push(STREAM)).toEqual(EVENTS);
});

test.each([1, 2, 3, 7, 20])("a stream in chunks of %d characters gives the same events", (size) => {
  const parser = new SseParser();
  const events = [];
  for (let at = 0; at < STREAM.length; at += size) events.push(...parser.push(STREAM.slice(at, at + size)));
  expect(events).toEqual(EVENTS);
});

test("line ends of Windows count as line ends, even if a chunk cuts them", () => {
  const parser = new SseParser();
  expect(parser.push("data: a\r\n\r")).toEqual([]);
  expect(parser.push("\ndata: b\r\n\r\n").map((event) => event.data)).toEqual(["a", "b"]);
});

test("an event is not given before its blank line", () => {
  const parser = new SseParser();
  expect(parser.push("data: a\n")).toEqual([]);
  expect(parser.push("\n")).toHaveLength(1);
});

test("only one space after the colon is cut off, and a field may have no value", () => {
  expect(new SseParser().push("data:  a\n\ndata:b\n\ndata\n\n").map((event) => event.data)).toEqual([" a", "b", ""]);
});

test("an event without an end is refused before it fills the memory", () => {
  const parser = new SseParser();
  const chunk = "x".repeat(16 << 20);
  expect(() => {
    for (let at = 0; at < 5; at++) parser.push(chunk);
  }).toThrow("has no end");
});
