/** The submit form's fields, and the job specification that they describe. */

import { errorMessage, type FieldError } from "../api/api-error";
import type { JobSpec } from "../api/types";
import { parseEnvironment, splitCommand } from "./command-line";

export interface SubmitForm {
  name: string;
  command: string;
  shell: boolean;
  plain: boolean;
  workdir: string;
  min: string;
  max: string;
  batch: "fixed" | "linear" | "adaptive";
  priority: string;
  steps: string;
  deadline: string;
  price: string;
  envs: string;
}

export const BLANK_FORM: SubmitForm = {
  name: "",
  command: "",
  shell: false,
  plain: false,
  workdir: "",
  min: "1",
  max: "",
  batch: "fixed",
  priority: "0",
  steps: "",
  deadline: "",
  price: "",
  envs: "",
};

const NAME = /^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$/;

/** Builds the specification, and finds the errors that need no server. Without a maximum, the job may use all `slots`. */
export function buildSpec(form: SubmitForm, slots: number, now: number): { spec: JobSpec; errors: FieldError[] } {
  const errors: FieldError[] = [];
  const parse = <T>(at: string, parser: () => T, fallback: T): T => {
    try {
      return parser();
    } catch (error) {
      errors.push({ at, text: errorMessage(error) });
      return fallback;
    }
  };
  const min = Number(form.min || 1);
  const max = Number(form.max || Math.max(min, slots || 1));
  const deadline = form.deadline ? new Date(form.deadline).getTime() / 1000 : null;
  const spec: JobSpec = {
    name: form.name,
    run: form.shell ? form.command : parse("run", () => splitCommand(form.command), []),
    elastic: { min, max, batch: form.batch },
    ...(form.plain ? { plain: true } : {}),
    ...(form.workdir.trim() ? { workdir: form.workdir.trim() } : {}),
    ...(form.envs.trim() ? { envs: parse("envs", () => parseEnvironment(form.envs), {}) } : {}),
    ...(Number(form.priority) ? { priority: Number(form.priority) } : {}),
    ...(form.steps ? { steps: Number(form.steps) } : {}),
    ...(deadline === null ? {} : { deadline }),
    ...(form.price ? { price_limit: Number(form.price) } : {}),
  };
  return { spec, errors: [...checkName(form), ...checkSize(min, max), ...checkDeadline(deadline, now), ...errors] };
}

function checkName({ name, command }: SubmitForm): FieldError[] {
  const errors: FieldError[] = [];
  if (!NAME.test(name)) {
    errors.push({ at: "name", text: "Use at most 48 lowercase letters, digits and hyphens, with no hyphen at either end." });
  }
  if (!command.trim()) errors.push({ at: "run", text: "Enter a command, such as: python train.py --lr 0.1" });
  return errors;
}

function checkSize(min: number, max: number): FieldError[] {
  if (!Number.isInteger(min) || min < 1) return [{ at: "elastic.min", text: "Enter a whole number of at least 1." }];
  if (!Number.isInteger(max) || max < min) return [{ at: "elastic.max", text: `Enter a whole number of at least ${min}.` }];
  return [];
}

function checkDeadline(deadline: number | null, now: number): FieldError[] {
  return deadline !== null && deadline < now ? [{ at: "deadline", text: "The deadline is in the past." }] : [];
}

/** The texts for one field: `elastic.max` also gets the errors of `elastic.max.x` and of `body.elastic.max`. */
export function errorsAt(errors: readonly FieldError[], field: string): string[] {
  return errors.filter(({ at }) => at === field || at.startsWith(`${field}.`) || at.endsWith(`.${field}`)).map(({ text }) => text);
}
