import { beforeEach, expect, test, vi } from "vitest";
import { cancelDraw, queueDraw } from "../../src/lib/draw-queue";

let frames: (() => void)[] = [];
const nextFrame = () => frames.shift()?.();

beforeEach(() => {
  frames = [];
  vi.stubGlobal("requestAnimationFrame", (callback: () => void) => frames.push(callback));
});

test("each frame draws one, in the order in which they were queued", () => {
  const drawn: string[] = [];
  const [a, b] = [() => void drawn.push("a"), () => void drawn.push("b")];
  queueDraw(a);
  queueDraw(b);
  queueDraw(a);
  expect(frames.length).toBe(1);
  nextFrame();
  expect(drawn).toEqual(["a"]);
  nextFrame();
  expect(drawn).toEqual(["a", "b"]);
  nextFrame();
  expect(drawn).toEqual(["a", "b"]);
});

test("a cancelled draw is not drawn", () => {
  const draw = vi.fn();
  queueDraw(draw);
  cancelDraw(draw);
  nextFrame();
  expect(draw).not.toHaveBeenCalled();
});

test("a draw that fails does not stop the others", () => {
  const other = vi.fn();
  queueDraw(() => {
    throw new Error("broken chart");
  });
  queueDraw(other);
  expect(nextFrame).toThrow("broken chart");
  nextFrame();
  expect(other).toHaveBeenCalledOnce();
});
