// The log: one JSON object per line on standard output, written by pino, with a child logger for
// each room (top-level folder of src).

import { type DestinationStream, type Logger, pino } from "pino";

export type { Logger } from "pino";

/** Fields that are redacted if a caller logs them by mistake. */
const REDACTED = ["token", "password", "passwordHash", "payload"];

/** Creates the root logger of a process. Variable data belongs in fields, not in the message. */
export function createLogger(
  options: { readonly level: string },
  destination: DestinationStream,
): Logger {
  return pino(
    {
      level: options.level,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      redact: [...REDACTED, ...REDACTED.map((name) => `*.${name}`)],
    },
    destination,
  );
}

export function roomLogger(logger: Logger, room: string): Logger {
  return logger.child({ room });
}
