// The log: one JSON object per line on standard output, by pino. Rooms get a child each. Never blocks the event loop on a slow
// reader: lines queue up to a bound and are dropped beyond it; what is queued is written when the process exits.

import { type DestinationStream, type Logger, pino } from "pino";

export type { Logger } from "pino";

/** What waits for a reader of the log at most; further lines are dropped. */
const MAX_QUEUED_BYTES = 8_388_608;

/** A safety net below the rule that secrets and payloads are not logged: these fields never reach a line. */
const REDACTED = ["token", "password", "passwordHash", "payload"];

/** The root logger of a process. Messages are constants, data stands in fields. */
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

/** The child that a room logs through. */
export function roomLogger(logger: Logger, room: string): Logger {
  return logger.child({ room });
}

function standardOutput(): DestinationStream {
  const output = pino.destination({
    fd: 1,
    sync: false,
    maxLength: MAX_QUEUED_BYTES,
  });
  output.on("error", () => {}); // a log that cannot be written (a full disk) must not end the process; there is nowhere to say so
  return output;
}
