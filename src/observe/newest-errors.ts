// Keeps the log's newest warnings and errors in memory, for operators. A repeated line is counted
// instead of stored again, so that many repetitions do not displace other lines.

import { lineFields } from "./pretty-line.ts";

export interface LoggedError {
  /** Time of the latest occurrence in ISO 8601. */
  readonly time: string;
  readonly level: "warn" | "error" | "fatal";
  /** Room that logged the line, or "" if the line has no room. */
  readonly room: string;
  readonly message: string;
  /** Message of the cause, or "" if the line has no cause. */
  readonly reason: string;
  /** Number of occurrences since the entry was added. */
  readonly count: number;
  /** Other fields of the latest occurrence that are strings, numbers or booleans. */
  readonly fields: Readonly<Record<string, string | number | boolean>>;
}

const MAX_ERRORS = 100;
const MAX_FIELDS = 20;
const MAX_TEXT_LENGTH = 500;
const LINE = /^\{"level":"(?:warn|error|fatal)"/;
/** Fields that have their own property above, or are the same in every line of a node. */
const KNOWN_FIELDS = new Set(["level", "time", "room", "msg", "reason", "node", "pid", "hostname"]);

export class NewestErrors {
  /** Ordered by each error's latest occurrence, earliest first. */
  readonly #errors = new Map<string, LoggedError>();

  /**
   * Adds a log line in JSON, in which secrets are already masked. Ignores lines at lower levels,
   * and lines that are not valid JSON because the mask has replaced part of a number.
   */
  add(line: string): void {
    const fields = LINE.test(line) ? lineFields(line) : undefined;
    if (fields === undefined) return;
    const entry = entryOf(fields);
    const name = [entry.level, entry.room, entry.message, entry.reason].join("\n");
    const count = 1 + (this.#errors.get(name)?.count ?? 0);
    this.#errors.delete(name);
    this.#errors.set(name, { ...entry, count });
    if (this.#errors.size <= MAX_ERRORS) return;
    const [oldest] = this.#errors.keys();
    if (oldest !== undefined) this.#errors.delete(oldest);
  }

  /** Returns the errors, newest first. */
  list(): readonly LoggedError[] {
    return [...this.#errors.values()].reverse();
  }
}

type Line = Readonly<Record<string, unknown>>;

function entryOf(line: Line): Omit<LoggedError, "count"> {
  const { level, time, room, msg } = line;
  return {
    time: String(time),
    level: level as LoggedError["level"], // `LINE` has matched the level
    room: typeof room === "string" ? room : "",
    message: cut(String(msg ?? "")),
    reason: cut(reasonIn(line)),
    fields: scalarsIn(line),
  };
}

/** Returns the field `reason`, or the message of the first error in the line. */
function reasonIn({ reason, ...fields }: Line): string {
  if (typeof reason === "string") return reason;
  const errors = Object.values(fields).map(
    (value) => Object(value) as { readonly message?: unknown },
  );
  const message = errors.find((value) => typeof value.message === "string")?.message;
  return typeof message === "string" ? message : "";
}

function scalarsIn(line: Line): LoggedError["fields"] {
  const scalars: Record<string, string | number | boolean> = {};
  for (const [name, value] of Object.entries(line).slice(0, MAX_FIELDS)) {
    if (KNOWN_FIELDS.has(name)) continue;
    if (typeof value === "string") scalars[name] = cut(value);
    if (typeof value === "number" || typeof value === "boolean") scalars[name] = value;
  }
  return scalars;
}

function cut(text: string): string {
  return text.length <= MAX_TEXT_LENGTH ? text : `${text.slice(0, MAX_TEXT_LENGTH)}…`;
}
