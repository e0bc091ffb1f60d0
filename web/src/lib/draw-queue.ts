/**
 * Runs at most one queued draw per animation frame, so that no task gets long however many charts a burst of points touches.
 *
 * One draw, not as many as fit into a time budget: a canvas only records commands, and the browser rasterises all canvases
 * together at the end of the frame, where no timer of ours can measure it.
 */

const queue = new Set<() => void>();
let frameRequested = false;

/** Queues a draw. A draw that is already queued keeps its place. */
export function queueDraw(draw: () => void): void {
  queue.add(draw);
  requestFrame();
}

export function cancelDraw(draw: () => void): void {
  queue.delete(draw);
}

function requestFrame(): void {
  if (frameRequested || queue.size === 0) return;
  frameRequested = true;
  requestAnimationFrame(drawNext);
}

function drawNext(): void {
  frameRequested = false;
  const [draw] = queue;
  if (draw === undefined) return;
  queue.delete(draw);
  requestFrame();
  draw();
}
