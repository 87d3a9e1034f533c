// Tests of the queue of log lines. They use the private class, because no interface of a node shows
// the size of the queue or the effect of a full disk.

import { execFileSync } from "node:child_process";
import { constants, openSync, readFileSync, readSync } from "node:fs";
import { join } from "node:path";
import { LogOutput } from "../../src/observe/log-output.ts";
import { tempFolder } from "../support/broker.ts";
import { t } from "../support/suite.ts";

const MIB = 1_048_576;
const PIPE_BYTES = 65_536;
const LINE = `${"x".repeat(1023)}\n`;

/** Reads all bytes that are in the pipe now. */
function readPipe(fd: number): string {
  const buffer = Buffer.alloc(PIPE_BYTES);
  let text = "";
  for (;;)
    try {
      const bytes = readSync(fd, buffer);
      if (bytes === 0) return text;
      text += buffer.toString("utf8", 0, bytes);
    } catch {
      return text; // EAGAIN: the pipe is empty
    }
}

t.test("a log whose reader hangs keeps at most 1 MiB and delivers it later", async (t) => {
  const path = join(await tempFolder(t), "log");
  execFileSync("mkfifo", [path]);
  const reader = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
  const output = new LogOutput(openSync(path, constants.O_WRONLY));
  const reports: number[] = [];
  output.onResumed = (dropped) => reports.push(dropped);
  for (let line = 0; line < 32 * 1024; line++) output.write(LINE);
  t.equal(output.dropped, 31 * 1024, "1 MiB of 32 MiB is queued");
  output.flushBeforeExit();
  t.equal(output.dropped, 31 * 1024, "a flush without a reader gives up and drops nothing");

  let text = "";
  while (reports.length === 0 || text.length < MIB) {
    text += readPipe(reader);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  t.equal(text, LINE.repeat(1024), "the queued lines arrive whole and in order");
  t.same(reports, [31 * 1024], "the dropped lines are reported once");
  output.write("next\n");
  output.flushBeforeExit();
  t.equal(readPipe(reader), "next\n");
});

t.test("a line that exceeds 1 MiB is dropped, and the next line is written", async (t) => {
  const path = join(await tempFolder(t), "log");
  const output = new LogOutput(openSync(path, "w"));
  output.write("x".repeat(MIB + 1));
  output.write("next\n");
  output.flushBeforeExit();
  t.equal(output.dropped, 1);
  t.equal(readFileSync(path, "utf8"), "next\n");
});

t.test("a log on a full disk drops lines and neither throws nor delays the exit", async (t) => {
  const output = new LogOutput(openSync("/dev/full", constants.O_WRONLY));
  for (let line = 0; line < 2048; line++) output.write(LINE);
  await new Promise((resolve) => setImmediate(resolve));
  t.equal(output.dropped, 1024);
  output.flushBeforeExit();
});
