// Tests of the log: the fields of a line, the level, and the removal of secrets.

import { createLogger, roomLogger } from "../../src/observe/logger.ts";
import { t } from "../support/suite.ts";

/** Creates a logger with this level and returns it with the array of the lines that it writes. */
function recorded(level: string) {
  const lines: Record<string, unknown>[] = [];
  const logger = createLogger({ level }, { write: (line: string) => lines.push(JSON.parse(line)) });
  return { logger, lines };
}

t.test("a log line is JSON with level, time, room, message and fields", async (t) => {
  const { logger, lines } = recorded("info");
  roomLogger(logger, "store").warn({ bytes: 3 }, "disk is full");
  t.match(lines, [{ level: "warn", room: "store", msg: "disk is full", bytes: 3 }]);
  t.match(lines[0]?.time, /^\d{4}-\d\d-\d\dT.*Z$/);
});

t.test("log lines below the configured level are not written", async (t) => {
  const { logger, lines } = recorded("error");
  logger.warn("no");
  roomLogger(logger, "api").error("yes");
  t.match(lines, [{ msg: "yes" }]);
  t.equal(lines.length, 1);
});

t.test("tokens, passwords and payloads are redacted from the fields of a log line", async (t) => {
  const { logger, lines } = recorded("info");
  logger.info({ token: "hunter2", body: { password: "hunter2" } }, "a");
  roomLogger(logger, "api").info({ message: { payload: "hunter2" } }, "b");
  t.equal(lines.length, 2);
  t.notMatch(JSON.stringify(lines), /hunter2/);
});

t.test("an error is logged with its stack", async (t) => {
  const { logger, lines } = recorded("info");
  logger.error({ err: new TypeError("oops") }, "failed");
  t.match(lines, [{ err: { type: "TypeError", message: "oops" } }]);
  t.match(lines[0], { err: { stack: /logger\.test/ } });
});
