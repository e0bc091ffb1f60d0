import { expect, test } from "vitest";
import { jobHref, parseRoute, parseToken } from "../../src/lib/route";

test.each([
  ["", { view: "cluster" }],
  ["/", { view: "cluster" }],
  ["/jobs", { view: "jobs" }],
  ["/jobs/", { view: "jobs" }],
  ["/jobs?x=1", { view: "jobs" }],
  ["/submit", { view: "submit" }],
  ["/policies", { view: "policies" }],
  ["/jobs/j-1", { view: "job", id: "j-1" }],
  ["/jobs/a%2Fb", { view: "job", id: "a/b" }],
])("#%s is a route", (path, route) => {
  expect(parseRoute(path)).toEqual(route);
});

test.each(["/elsewhere", "/jobs/a/b", "/submit/x", "/jobs/%"])("#%s is unknown", (path) => {
  expect(parseRoute(path)).toEqual({ view: "unknown", path });
});

test("the link to a job leads to its route", () => {
  expect(parseRoute(jobHref("a/b?c").slice(1))).toEqual({ view: "job", id: "a/b?c" });
});

test.each([
  ["#token=st_abc", "st_abc"],
  ["#token=a%2Bb&x=1", "a+b"],
  ["#token=", null],
  ["#token=%", null],
  ["#/jobs?token=st_abc", null],
  ["", null],
])("the token of %j is %j", (fragment, token) => {
  expect(parseToken(fragment)).toBe(token);
});
