// The log: one line of JSON, or a line for people, for each event. pino writes the lines, with a
// child logger for each room (top-level folder of src).

import { type DestinationStream, type Logger, pino } from "pino";
import { errorFields } from "./error-fields.ts";
import type { NewestErrors } from "./newest-errors.ts";
import { prettyLine } from "./pretty-line.ts";

export type { Logger } from "pino";

/** Fields that are redacted if a caller logs them by mistake. */
const REDACTED = ["token", "password", "passwordHash", "payload"];

/** Minimum length of a secret that is masked. A shorter one may be part of ordinary words. */
const MIN_SECRET_LENGTH = 4;
const MASK = "******";

interface LogOptions {
  readonly level: string;
  /** Form of the lines. Default: JSON. */
  readonly form?: LogForm;
  readonly secrets?: readonly string[];
  readonly newestErrors?: NewestErrors;
}

type LogForm = "json" | "pretty" | "coloured";

/** Returns the form of the lines for a value of `log.format`. */
export function logForm(
  format: "auto" | "json" | "pretty",
  output: { readonly isTerminal: boolean; readonly mayHaveColours: boolean },
): LogForm {
  if (format === "json" || (format === "auto" && !output.isTerminal)) return "json";
  return output.isTerminal && output.mayHaveColours ? "coloured" : "pretty";
}

/** Creates the logger. Variable data belongs in fields, not in the message. */
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
      serializers: { err: (fields: unknown) => fields }, // `withErrorFields` has made the fields
      hooks: {
        streamWrite: form === "json" ? mask : (line) => prettyLine(mask(line), form === "coloured"),
      },
      redact: [...REDACTED, ...REDACTED.map((name) => `*.${name}`)],
    },
    destination,
  );
}

/** Replaces errors with their fields. An error that is logged without a name is in `err`. */
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
    .sort((a, b) => b.length - a.length); // a secret may be a part of another one
  return (line) => texts.reduce((text, secret) => text.replaceAll(secret, MASK), line);
}

export function roomLogger(logger: Logger, room: string): Logger {
  return logger.child({ room });
}
