import { expect, test } from "vitest";
import { buildUrl } from "../../src/lib/url";

test("parameters are encoded; those without a value are left out, but 0 and false are values", () => {
  expect(buildUrl("/v1/jobs", { name: "a b&c", state: null, cursor: undefined, tag: "", after: 0, all: false })).toBe(
    "/v1/jobs?name=a+b%26c&after=0&all=false",
  );
  expect(buildUrl("/v1/jobs", { state: null })).toBe("/v1/jobs");
  expect(buildUrl("/v1/jobs")).toBe("/v1/jobs");
});
