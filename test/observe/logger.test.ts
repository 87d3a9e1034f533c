// Tests of the log: the fields of a line, its form, the level, and the removal of secrets.

import { createLogger, logForm, roomLogger } from "../../src/observe/logger.ts";
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

/** Returns the lines that `write` logs in the human-readable form. */
function prettyLines(
  write: (logger: ReturnType<typeof createLogger>) => void,
  form: "pretty" | "coloured" = "pretty",
): readonly string[] {
  const lines: string[] = [];
  const destination = { write: (line: string) => lines.push(line) };
  write(createLogger({ level: "info", form, secrets: ["hunter2", "5200"] }, destination));
  return lines.join("").trimEnd().split("\n");
}

t.test("a human-readable log line has time, level, room, message, reason and fields", async (t) => {
  const [line] = prettyLines((logger) =>
    roomLogger(logger, "redis").warn(
      { reason: "it is away. Start it", waitedS: 3, name: "two words", sub: { a: 1 } },
      "Redis cannot be used",
    ),
  );
  const rest = /^\d\d:\d\d:\d\d\.\d{3} (.*)$/.exec(line ?? "")?.[1];
  const fields = 'waitedS=3 name="two words" sub={"a":1}';
  t.equal(rest, `WARN  [redis] Redis cannot be used: it is away. Start it ${fields}`);
});

t.test(
  "a human-readable log line has the stack if its level is error, but not if it is warn",
  async (t) => {
    const err = new Error("oops");
    const [warning, line, frame, ...frames] = prettyLines((logger) => {
      logger.warn({ err }, "Tried");
      logger.error({ err }, "Failed");
    });
    t.match(warning, / WARN {2}Tried: oops$/);
    t.match(line, / ERROR Failed: oops$/);
    for (const text of [frame, ...frames]) t.match(text, /^ +at /);
  },
);

t.test("a human-readable log line shows neither secrets nor control characters", async (t) => {
  const [line, masked, ...more] = prettyLines((logger) => {
    logger.info({ text: "a\u001b[2Jhunter2\nb" }, "Printed");
    logger.info({ port: 5200 }, "Listening");
  });
  t.match(line, /text="a\\u001b\[2J\*{6}\\nb"$/);
  t.match(masked, /Listening/);
  t.notMatch(masked, /5200/);
  t.same(more, []);
});

t.test("a terminal shows log lines in human-readable form, in colour if allowed", async (t) => {
  const terminal = { isTerminal: true, mayHaveColours: true };
  const pipe = { ...terminal, isTerminal: false };
  t.equal(logForm("auto", terminal), "coloured");
  t.equal(logForm("auto", { ...terminal, mayHaveColours: false }), "pretty");
  t.equal(logForm("auto", pipe), "json");
  t.equal(logForm("json", terminal), "json");
  t.equal(logForm("pretty", pipe), "pretty");
  const [line] = prettyLines((logger) => logger.info("Ready"), "coloured");
  t.ok(line?.includes("\u001b[32mINFO \u001b[0m Ready"));
});
