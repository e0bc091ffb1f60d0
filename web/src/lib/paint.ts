/**
 * Drawing in turns: what wants to be drawn waits in a queue, and each frame of the browser draws one of it. However many
 * charts a burst of points touches, no single task gets long.
 *
 * One, not as many as fit into some milliseconds: a canvas only notes what is drawn on it, and the browser does the work at
 * the end of the frame, for all canvases together, where no clock of ours sees it.
 */

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
  if (asked || waiting.size === 0) return;
  asked = true;
  requestAnimationFrame(work);
}

function work(): void {
  asked = false;
  for (const draw of waiting) {
    waiting.delete(draw);
    draw();
    break;
  }
  ask();
}
