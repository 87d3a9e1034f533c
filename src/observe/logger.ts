// The log: one line per event, in JSON or in a readable form. pino writes the lines. Each room
// (top-level folder of src) has a child logger.

import { type DestinationStream, type Logger, pino } from "pino";
import { errorFields } from "./error-fields.ts";
import type { NewestErrors } from "./newest-errors.ts";
import { prettyLine } from "./pretty-line.ts";

export type { Logger } from "pino";

/** Fields that are redacted, in case a caller logs them by mistake. */
const REDACTED = ["token", "password", "passwordHash", "payload"];

/** Minimum length of a secret that is masked. Shorter secrets may occur in ordinary words. */
const MIN_SECRET_LENGTH = 4;
const MASK = "******";

interface LogOptions {
  readonly level: string;
  /** Format of the lines. Default: JSON. */
  readonly form?: LogForm;
  readonly secrets?: readonly string[];
  readonly newestErrors?: NewestErrors;
}

type LogForm = "json" | "pretty" | "coloured";

/** Returns the line format for this value of `log.format`. */
export function logForm(
  format: "auto" | "json" | "pretty",
  output: { readonly isTerminal: boolean; readonly mayHaveColours: boolean },
): LogForm {
  if (format === "json" || (format === "auto" && !output.isTerminal)) return "json";
  return output.isTerminal && output.mayHaveColours ? "coloured" : "pretty";
}

/** Creates the logger. Callers must put variable data into fields, not into the message. */
export function createLogger(options: LogOptions, destination: DestinationStream): Logger {
  const { form = "json", newestErrors } = options;
  const maskSecrets = maskerOf(options.secrets ?? []);
  const mask = (line: string) => {
    const masked = maskSecrets(line);
    newestErrors?.add(masked);
    return masked;
  };
  return pino(
    {
      level: options.level,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }), log: withErrorFields },
      serializers: { err: (fields: unknown) => fields }, // `withErrorFields` has already replaced the error
      hooks: {
        streamWrite: form === "json" ? mask : (line) => prettyLine(mask(line), form === "coloured"),
      },
      redact: [...REDACTED, ...REDACTED.map((name) => `*.${name}`)],
    },
    destination,
  );
}

/** Replaces errors with their fields. pino puts an error without a field name into `err`. */
function withErrorFields(fields: object): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(fields).map(([name, value]) => [
      name,
      value instanceof Error || name === "err" ? errorFields(value) : value,
    ]),
  );
}

function maskerOf(secrets: readonly string[]): (line: string) => string {
  const texts = secrets
    .filter(({ length }) => length >= MIN_SECRET_LENGTH)
    .map((secret) => JSON.stringify(secret).slice(1, -1))
    .sort((a, b) => b.length - a.length); // longest first, because a secret may be part of another one
  return (line) => texts.reduce((text, secret) => text.replaceAll(secret, MASK), line);
}

export function roomLogger(logger: Logger, room: string): Logger {
  return logger.child({ room });
}
