// The log: one JSON object per line on standard output, written by pino, with a child logger for
// each room (top-level folder of src). A slow reader of the output never blocks the event loop:
// lines are queued, and dropped when the queue is full. The queue is written out when the process
// exits.

import { type DestinationStream, type Logger, pino } from "pino";

export type { Logger } from "pino";

/** Maximum size of the queue of unwritten lines. Further lines are dropped. */
const MAX_QUEUED_BYTES = 8_388_608;

/** Fields that are redacted if a caller logs them by mistake. */
const REDACTED = ["token", "password", "passwordHash", "payload"];

/** Creates the root logger of a process. Variable data belongs in fields, not in the message. */
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
  output.on("error", () => {}); // a log that cannot be written (full disk) must not end the process
  return output;
}
