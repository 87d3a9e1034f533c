// Formats numbers, times and payloads as text.

const KIB = 1024;
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function byteSize(bytes: number): string {
  let [value, unit] = [bytes, 0];
  while (value >= KIB && unit < BYTE_UNITS.length - 1) {
    value /= KIB;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${BYTE_UNITS[unit]}`;
}

export function percent(share: number): string {
  return `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

export function number(value: number): string {
  if (value >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value.toFixed(value >= 10 ? 1 : 2);
}

/** Formats a duration with its two largest units. */
export function duration(seconds: number): string {
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${number(seconds * 1000)} ms`;
  const parts = [
    [Math.floor(seconds / 86_400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [Math.floor(seconds) % 60, "s"],
  ] as const;
  const first = parts.findIndex(([count]) => count > 0);
  return parts
    .slice(first, first + 2)
    .filter(([count]) => count > 0)
    .map(([count, unit]) => `${count} ${unit}`)
    .join(" ");
}

export function clockTime(ms: number): string {
  return new Date(ms).toLocaleTimeString("en-GB");
}

/** Formats a time, with its date if the date is not today. */
export function dateTime(ms: number): string {
  const date = new Date(ms);
  const isToday = date.toDateString() === new Date().toDateString();
  const day = isToday ? "" : `${date.toLocaleDateString("en-CA")} `;
  return `${day}${clockTime(ms)}`;
}

/**
 * Returns the parsed JSON of a payload, its text if it is not JSON, or its Base64 if it is not
 * UTF-8.
 */
export function decodePayload(base64: string): unknown {
  let text: string;
  try {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return base64;
  }
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Returns the Base64 payload of a text message. */
export function textPayload(content: string): string {
  const bytes = new TextEncoder().encode(JSON.stringify({ type: 1, content }));
  return btoa(String.fromCharCode(...bytes));
}

export function summaryOf(payload: unknown): string {
  if (typeof payload !== "object" || payload === null) return String(payload);
  const { content, cmd } = payload as { readonly content?: unknown; readonly cmd?: unknown };
  if (typeof content === "string") return content;
  if (typeof cmd === "string") return `command ${cmd}`;
  return JSON.stringify(payload);
}

/** Quotes a value for a POSIX shell. */
export function shellQuoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
