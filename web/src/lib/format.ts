/** Numbers, times and durations as people read them. An absent value is an en dash. */

export const NONE = "–";
type Maybe = number | null | undefined;

export function figure(value: Maybe, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e15)) return value.toExponential(2);
  if (size >= 1e6) return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 }).format(value);
  if (size >= 1000) return grouped.format(Math.round(value));
  return String(Number(value.toPrecision(digits)));
}

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A mark on an axis whose marks are `stride` apart: as many decimals as tell them from each other. */
export function tick(value: number, stride: number): string {
  if (!(stride >= 1e-6) || Math.abs(value) >= 1000) return figure(value);
  const power = Math.floor(Math.log10(stride) + 1e-9);
  const broken = Math.abs((stride / 10 ** power) % 1) > 1e-6;
  return value.toFixed(Math.max(0, (broken ? 1 : 0) - power));
}

export function whole(value: Maybe): string {
  return value === null || value === undefined ? NONE : grouped.format(value);
}

export function percent(fraction: Maybe): string {
  if (fraction === null || fraction === undefined) return NONE;
  const value = fraction * 100;
  return `${value < 10 && value > 0 && value % 1 >= 0.05 ? value.toFixed(1) : Math.floor(value)}%`;
}

export function duration(seconds: Maybe): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  if (seconds < 0) return "now";
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (seconds < 600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60) % 60} s`;
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.round((minutes % 1440) / 60)} h`;
}

export function pause(ms: Maybe): string {
  if (ms === null || ms === undefined) return NONE;
  return ms < 1000 ? `${figure(ms, 2)} ms` : duration(ms / 1000);
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const date = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });

/** The time of day, with the date if it is another day. */
export function moment(t: Maybe, now: number): string {
  if (t === null || t === undefined) return NONE;
  return Math.abs(now - t) < 12 * 3600 ? clock.format(t * 1000) : date.format(t * 1000);
}

/** A mark on an axis of time; `stride` is the distance between marks in seconds. */
export function clockTick(t: number, stride: number): string {
  const at = new Date(t * 1000);
  const two = (value: number) => String(value).padStart(2, "0");
  if (stride >= 86400) return `${two(at.getDate())}.${two(at.getMonth() + 1)}.`;
  return `${two(at.getHours())}:${two(at.getMinutes())}${stride < 60 ? `:${two(at.getSeconds())}` : ""}`;
}

export function ago(t: Maybe, now: number): string {
  if (t === null || t === undefined) return NONE;
  const seconds = now - t;
  if (seconds < 5) return "just now";
  return seconds < 60 ? `${Math.floor(seconds)} s ago` : `${duration(Math.floor(seconds / 60) * 60).replace(" 0 s", "")} ago`;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${whole(count)} ${count === 1 ? one : many}`;
}
