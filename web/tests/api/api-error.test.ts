import { expect, test } from "vitest";
import { errorMessage, readApiError } from "../../src/api/api-error";

test("a problem document gives its sentence and its field errors", async () => {
  const body = JSON.stringify({
    status: 422,
    title: "invalid",
    detail: "The job is invalid.",
    errors: [{ at: "name", text: "is bad" }],
  });
  const error = await readApiError(new Response(body, { status: 422 }));
  expect([error.status, error.message, error.fieldErrors]).toEqual([422, "The job is invalid.", [{ at: "name", text: "is bad" }]]);
});

test.each(["<html>Bad gateway</html>", "", "null", "[]", '{"detail": 5, "errors": 6}'])(
  "the body %j falls back to the status",
  async (body) => {
    const error = await readApiError(new Response(body, { status: 502, statusText: "Bad Gateway" }));
    expect([error.message, error.fieldErrors]).toEqual(["The server answered 502 Bad Gateway.", []]);
  },
);

test("anything that was thrown has a message", () => {
  expect([errorMessage(new Error("broken")), errorMessage("text")]).toEqual(["broken", "text"]);
});
