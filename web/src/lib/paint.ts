/**
 * Drawing in turns: what wants to be drawn waits in a queue, and one frame of the browser draws as much as fits into a
 * few milliseconds. However many charts a burst of points touches, no single task gets long.
 */

const BUDGET_MS = 8;
const waiting = new Set<() => void>();
let asked = false;

export function paint(draw: () => void): void {
  waiting.add(draw);
  ask();
}

export function unpaint(draw: () => void): void {
  waiting.delete(draw);
}

function ask(): void {
  if (asked) return;
  asked = true;
  requestAnimationFrame(work);
}

function work(): void {
  asked = false;
  const start = performance.now();
  for (const draw of waiting) {
    waiting.delete(draw);
    draw();
    if (performance.now() - start > BUDGET_MS) break;
  }
  if (waiting.size > 0) ask();
}
