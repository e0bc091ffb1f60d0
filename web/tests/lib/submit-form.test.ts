import { describe, expect, test } from "vitest";
import { BLANK_FORM, buildSpec, errorsAt, type SubmitForm } from "../../src/lib/submit-form";

const NOW = Date.UTC(2026, 10, 18) / 1000;
const build = (fields: Partial<SubmitForm>) =>
  buildSpec({ ...BLANK_FORM, name: "digits", command: "python train.py", ...fields }, 4, NOW);
const fieldsOf = (fields: Partial<SubmitForm>) => build(fields).errors.map(({ at }) => at);

test("a form with a name and a command gives the smallest specification, with all slots as the maximum", () => {
  const { spec, errors } = build({});
  expect(errors).toEqual([]);
  expect(spec).toEqual({ name: "digits", run: ["python", "train.py"], elastic: { min: 1, max: 4, batch: "fixed" } });
});

test("everything that is filled in is sent", () => {
  const { spec, errors } = build({
    shell: true,
    command: "cd x && python train.py",
    plain: true,
    workdir: " /data ",
    min: "2",
    max: "3",
    batch: "adaptive",
    priority: "-5",
    steps: "100",
    deadline: "2026-11-19T00:00",
    price: "0.5",
    envs: "A=1",
  });
  expect(errors).toEqual([]);
  expect(spec).toEqual({
    name: "digits",
    run: "cd x && python train.py",
    plain: true,
    workdir: "/data",
    elastic: { min: 2, max: 3, batch: "adaptive" },
    priority: -5,
    steps: 100,
    deadline: NOW + 86_400,
    price_limit: 0.5,
    envs: { A: "1" },
  });
});

test("a minimum above the number of slots raises the maximum", () => {
  expect(build({ min: "6" }).spec.elastic).toMatchObject({ min: 6, max: 6 });
});

test.each(["Digits", "-a", "a-", "a_b", "", "a".repeat(49)])("the name %j is refused", (name) => {
  expect(fieldsOf({ name })).toEqual(["name"]);
});

test.each(["a", "a-1", "a".repeat(48)])("the name %j is accepted", (name) => {
  expect(fieldsOf({ name })).toEqual([]);
});

test("what is wrong is said at its field", () => {
  expect(fieldsOf({ command: " " })).toEqual(["run"]);
  expect(fieldsOf({ command: "python 'train.py" })).toEqual(["run"]);
  expect(fieldsOf({ command: "python 'train.py", shell: true })).toEqual([]);
  expect(fieldsOf({ min: "0" })).toEqual(["elastic.min"]);
  expect(fieldsOf({ min: "1.5" })).toEqual(["elastic.min"]);
  expect(fieldsOf({ min: "3", max: "2" })).toEqual(["elastic.max"]);
  expect(fieldsOf({ deadline: "2026-11-17T00:00" })).toEqual(["deadline"]);
  expect(fieldsOf({ envs: "nothing" })).toEqual(["envs"]);
});

describe("errorsAt", () => {
  const errors = [
    { at: "elastic.max", text: "too small" },
    { at: "body.elastic.max", text: "too large" },
    { at: "elastic.max.0", text: "inside" },
    { at: "name", text: "other" },
  ];

  test("finds the errors of a field wherever the server counts its path from", () => {
    expect(errorsAt(errors, "elastic.max")).toEqual(["too small", "too large", "inside"]);
  });

  test("does not confuse fields whose names end alike", () => {
    expect(errorsAt([{ at: "rename", text: "x" }], "name")).toEqual([]);
  });
});
