/** Numbers, times and durations for people. A missing value is an en dash. */

export const MISSING = "–";
type Optional = number | null | undefined;

const integers = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });
const timeOfDay = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const dateAndTime = new Intl.DateTimeFormat(undefined, {
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  hourCycle: "h23",
});
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

export function formatNumber(value: Optional, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  const magnitude = Math.abs(value);
  if (magnitude !== 0 && (magnitude < 1e-3 || magnitude >= 1e15)) return value.toExponential(2);
  if (magnitude >= 1e6) return compact.format(value);
  const rounded = magnitude >= 1000 ? Math.round(value) : Number(value.toPrecision(digits));
  return Math.abs(rounded) >= 1000 ? integers.format(rounded) : String(rounded);
}

export function formatInteger(value: Optional): string {
  return value === null || value === undefined ? MISSING : integers.format(value);
}

/** A tick label for an axis whose ticks are `stride` apart: as many decimals as it takes to tell them apart. */
export function formatTick(value: number, stride: number): string {
  if (!(stride >= 1e-6) || Math.abs(value) >= 1000) return formatNumber(value);
  const power = Math.floor(Math.log10(stride) + 1e-9);
  const hasSecondDigit = Math.abs((stride / 10 ** power) % 1) > 1e-6;
  return value.toFixed(Math.max(0, (hasSecondDigit ? 1 : 0) - power));
}

/** Rounds down, with a decimal below 10%: 100% means that everything is done. */
export function formatPercent(fraction: Optional): string {
  if (fraction === null || fraction === undefined) return MISSING;
  const tenths = Math.floor(fraction * 1000 + 1e-6);
  return `${tenths < 100 ? tenths / 10 : Math.floor(tenths / 10)}%`;
}

export function formatDuration(seconds: Optional): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return MISSING;
  if (seconds < 0) return "now";
  if (seconds < 9.95) return `${Number(seconds.toFixed(1))} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function formatMilliseconds(ms: Optional): string {
  if (ms === null || ms === undefined) return MISSING;
  return ms < 1000 ? `${formatNumber(ms, 2)} ms` : formatDuration(ms / 1000);
}

/** The time of day; with the date if it is more than half a day away. */
export function formatTime(t: Optional, now: number): string {
  if (t === null || t === undefined) return MISSING;
  return (Math.abs(now - t) < 12 * 3600 ? timeOfDay : dateAndTime).format(t * 1000);
}

/** A tick label for a time axis whose ticks are `stride` seconds apart. */
export function formatTimeTick(t: number, stride: number): string {
  const date = new Date(t * 1000);
  if (stride >= 86_400) return day.format(date);
  const parts = [date.getHours(), date.getMinutes(), ...(stride < 60 ? [date.getSeconds()] : [])];
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}

export function formatAge(t: Optional, now: number): string {
  if (t === null || t === undefined) return MISSING;
  const seconds = now - t;
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  return `${formatDuration(Math.floor(seconds / 60) * 60).replace(" 0 s", "")} ago`;
}

export function pluralize(count: number, singular: string, plural = `${singular}s`): string {
  return `${formatInteger(count)} ${count === 1 ? singular : plural}`;
}
