/** Sets the performance mark `stretto-ready` once, when the first view shows its data and reacts to input. */

let marked = false;

export function markReady(): void {
  if (marked) return;
  marked = true;
  requestAnimationFrame(() => setTimeout(() => performance.mark("stretto-ready")));
}
