/** What a chart computes from its data. A column has a value or null for each point. */

export type ChartColumn = ArrayLike<number | null | undefined>;

/** How far back a point without a value may borrow one: metrics that are not reported at every step. */
const MAX_LOOKBACK = 50;

/** The value at this point, or the closest one before it; null if there is none nearby. */
export function valueAt(column: ChartColumn, at: number): number | null {
  return lastValue(column, at, Math.max(0, at - MAX_LOOKBACK));
}

/** The last value between two points, by default of the whole column; null if there is none. */
export function lastValue(column: ChartColumn, from: number = column.length - 1, to = 0): number | null {
  for (let at = from; at >= to; at--) {
    const value = column[at];
    if (value !== null && value !== undefined) return value;
  }
  return null;
}

/** Whether the column has at least this many values. */
export function hasValues(column: ChartColumn, atLeast = 1): boolean {
  let count = 0;
  for (let at = 0; at < column.length && count < atLeast; at++) {
    if (column[at] !== null && column[at] !== undefined) count++;
  }
  return count >= atLeast;
}

/** The range of an axis: the data with a margin. With `fromZero`, it includes zero. */
export function paddedRange(low: number | null, high: number | null, fromZero: boolean): [low: number, high: number] {
  if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  const bottom = fromZero ? Math.min(0, low) : low;
  const margin = (high - bottom || Math.abs(high) || 1) * 0.07;
  return [fromZero && low >= 0 ? 0 : bottom - margin, high + margin];
}

/** The point that a key moves the cursor to, in strides of 1% of the points; null for keys that move nothing. */
export function moveCursor(key: string, at: number, count: number): number | null {
  const stride = Math.max(1, Math.floor(count / 100));
  const target = { ArrowLeft: at - stride, ArrowRight: at + stride, Home: 0, End: count - 1 }[key];
  return target === undefined || count === 0 ? null : Math.min(count - 1, Math.max(0, target));
}
