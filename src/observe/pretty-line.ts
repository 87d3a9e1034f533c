// Formats a log line for reading in a terminal: the time, the level, the room, the message and the
// other fields. At the levels `error` and `fatal`, the error's stack follows on its own lines. Pure
// functions.

import { printable } from "../lib/printable.ts";

/** Fields in every line that are not useful when all lines come from one process. */
const HIDDEN: ReadonlySet<string> = new Set(["pid", "hostname", "node"]);
const PLAIN = /^[\w.,:;/@%+*()[\]-]+$/;
const WITH_STACK: ReadonlySet<string> = new Set(["error", "fatal"]);
const LEVEL_WIDTH = 5;
const RESET = "\u001b[0m";
const GREY = "\u001b[90m";
const COLOURS: Readonly<Record<string, string>> = {
  info: "\u001b[32m",
  warn: "\u001b[33m",
  error: "\u001b[31m",
  fatal: "\u001b[1;31m",
};

/** Formats a log line. A line that is not a JSON object is returned unchanged. */
export function prettyLine(json: string, isColoured: boolean): string {
  const fields = lineFields(json);
  if (fields === undefined) return json;
  const { time, level, room, msg, reason, err, ...others } = fields;
  const name = String(level);
  const paint = (colour: string, text: string) =>
    isColoured && text !== "" ? `${colour}${text}${RESET}` : text;
  const error = Object(err) as { readonly message?: unknown; readonly stack?: unknown };
  const sentences = [msg, reason, error.message].filter((text) => typeof text === "string");
  const details = Object.entries(others)
    .filter(([field]) => !HIDDEN.has(field))
    .map(([field, value]) => `${printable(field)}=${shown(value)}`);
  const words = [
    paint(GREY, timeOf(time)),
    paint(COLOURS[name] ?? GREY, name.toUpperCase().padEnd(LEVEL_WIDTH)),
    room === undefined ? "" : paint(GREY, `[${printable(String(room))}]`),
    printable(sentences.join(": ")),
    paint(GREY, details.join(" ")),
  ];
  const stack = WITH_STACK.has(name) && typeof error.stack === "string" ? error.stack : "";
  const frames = stack.split("\n").filter((frame) => frame !== "");
  return [words.filter((word) => word !== "").join(" "), ...frames.map(printable), ""].join("\n");
}

/** Returns the fields of a log line, or `undefined` if it is not a JSON object. */
export function lineFields(json: string): Readonly<Record<string, unknown>> | undefined {
  try {
    const value: unknown = JSON.parse(json);
    return typeof value === "object" && value !== null ? { ...value } : undefined;
  } catch {
    return undefined; // the mask of a secret may have replaced part of a number
  }
}

function timeOf(time: unknown): string {
  const date = new Date(String(time));
  const digits = (value: number, width = 2) => String(value).padStart(width, "0");
  return `${digits(date.getHours())}:${digits(date.getMinutes())}:${digits(date.getSeconds())}.${digits(date.getMilliseconds(), 3)}`;
}

function shown(value: unknown): string {
  const isPlain = typeof value === "string" && PLAIN.test(value);
  return isPlain ? value : printable(JSON.stringify(value));
}
