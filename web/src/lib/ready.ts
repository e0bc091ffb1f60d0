/** Marks the moment when the first view can be used: its data is on the screen and its handlers are in place. */

let marked = false;

export function ready(): void {
  if (marked) return;
  marked = true;
  requestAnimationFrame(() => setTimeout(() => performance.mark("stretto-ready")));
}
