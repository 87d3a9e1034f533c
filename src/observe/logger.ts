// The log: one JSON object per line on standard output, by pino, with a child logger per room.
// Never blocks the event loop on a slow reader: lines are queued up to a bound and dropped beyond
// it; the queue is written when the process exits.

import { type DestinationStream, type Logger, pino } from "pino";

export type { Logger } from "pino";

/** Bound of the queue; further lines are dropped. */
const MAX_QUEUED_BYTES = 8_388_608;

/** Secrets and payloads must not be logged; these fields are removed in any case. */
const REDACTED = ["token", "password", "passwordHash", "payload"];

/** The root logger of a process. Messages are constants, data is in fields. */
export function createLogger(
  options: { readonly level: string },
  destination: DestinationStream = standardOutput(),
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

function standardOutput(): DestinationStream {
  const output = pino.destination({
    fd: 1,
    sync: false,
    maxLength: MAX_QUEUED_BYTES,
  });
  output.on("error", () => {}); // an unwritable log (a full disk) must not end the process
  return output;
}
