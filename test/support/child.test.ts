// A test process that is killed before its teardown leaves no child process running. The test runs
// orphans.ts in the role of a test file and kills it.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { TYPESCRIPT_ARGS, tieToParent } from "./child.ts";
import { t } from "./suite.ts";

const FILE = fileURLToPath(new URL("orphans.ts", import.meta.url));
const skip = process.platform === "linux" ? false : "tieToParent works on Linux only";

/** A zombie (state Z or X in /proc) counts as ended. */
function isRunning(pid: number): boolean {
  try {
    return !/\) [ZX] /.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch {
    return false;
  }
}

t.test("brokers, Redis servers and shells end with the test process", { skip }, async (t) => {
  const args = [...TYPESCRIPT_ARGS, FILE];
  const child = spawn(...tieToParent(process.execPath, args), {
    stdio: ["ignore", "pipe", "inherit"],
  });
  t.teardown(() => child.kill("SIGKILL"));
  let output = "";
  const pidList = () => /^\{"pids":(.*)\}$/m.exec(output)?.[1];
  child.stdout.on("data", (text) => {
    output += text;
  });
  while (pidList() === undefined) await once(child.stdout, "data");
  const pids = JSON.parse(pidList() ?? "") as readonly number[];
  t.equal(pids.filter(isRunning).length, 4, "all four processes run before the kill");
  child.kill("SIGKILL");
  while (pids.some(isRunning)) await new Promise((go) => setTimeout(go, 10));
  t.pass("all four processes end after the kill");
});
