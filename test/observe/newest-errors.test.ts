// The newest warnings and errors of the log, as GET /admin/errors returns them. Their maximum
// number is tested here, because no calls of users make a node log a hundred different errors.

import { createLogger, roomLogger } from "../../src/observe/logger.ts";
import { NewestErrors } from "../../src/observe/newest-errors.ts";
import { t } from "../support/suite.ts";

function start(secrets: readonly string[] = []) {
  const newestErrors = new NewestErrors();
  const logger = createLogger({ level: "info", secrets, newestErrors }, { write: () => undefined });
  return { newestErrors, logger };
}

t.test(
  "warnings and errors are kept with their cause, and lines of lower levels are not kept",
  (t) => {
    const { newestErrors, logger } = start();
    logger.info("The node is ready");
    roomLogger(logger, "store").error({ err: new Error("the disk is full") }, "Could not write");
    logger.warn({ address: "10.0.0.1", reason: "silent", list: [1] }, "Sockets were closed");
    t.match(newestErrors.list(), [
      {
        ...{ level: "warn", room: "", message: "Sockets were closed", reason: "silent", count: 1 },
        fields: { address: "10.0.0.1" },
        time: /^\d{4}-/,
      },
      { level: "error", room: "store", message: "Could not write", reason: "the disk is full" },
    ]);
    t.same(newestErrors.list()[0]?.fields, { address: "10.0.0.1" });
    t.end();
  },
);

t.test("equal errors are counted, and at most 100 different errors are kept", (t) => {
  const { newestErrors, logger } = start();
  logger.error("early");
  for (let n = 0; n < 1000; n++) logger.error({ n }, "again");
  for (let n = 0; n < 98; n++) logger.error(`error ${n}`);
  logger.error("early");
  t.equal(newestErrors.list().length, 100);
  t.match(newestErrors.list()[0], { message: "early", count: 2 });
  t.match(newestErrors.list().at(-1), { message: "again", count: 1000, fields: { n: 999 } });
  logger.error({ text: "x".repeat(10_000) }, "y".repeat(10_000));
  const [newest] = newestErrors.list();
  t.equal(newestErrors.list().length, 100);
  t.ok((newest?.message.length ?? 0) < 600 && String(newest?.fields.text).length < 600);
  t.notOk(
    newestErrors.list().some(({ message }) => message === "again"),
    "the oldest error was dropped",
  );
  t.end();
});

t.test("secrets in the kept errors are masked as in the log", (t) => {
  const { newestErrors, logger } = start(["a-secret-token"]);
  const err = new Error("wrong credential a-secret-token");
  logger.error({ err, token: "another", url: "redis://:a-secret-token@host" }, "Could not log in");
  const text = JSON.stringify(newestErrors.list());
  t.notMatch(text, "a-secret-token");
  t.notMatch(text, "another");
  t.match(text, "wrong credential ******");
  t.end();
});

t.test("a number that contains a secret does not make the log call fail", (t) => {
  const { newestErrors, logger } = start(["4711"]);
  logger.error({ count: 14_711 }, "Too many");
  logger.error("Still logged");
  t.match(newestErrors.list(), [{ message: "Still logged" }]);
  t.end();
});
