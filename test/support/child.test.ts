// A test process that ends without its teardown, killed or timed out, leaves no process behind.
// Seen from outside: a process in the place of a test file.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { TYPESCRIPT_ARGS, tieToParent } from "./child.ts";
import { t } from "./suite.ts";

const FILE = fileURLToPath(new URL("orphans.ts", import.meta.url));
const skip = process.platform === "linux" ? false : "elsewhere nothing kills them";

/** One that nobody has waited for yet is gone as well. */
function lives(pid: number): boolean {
  try {
    return !/\) [ZX] /.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch {
    return false;
  }
}

t.test("brokers, Redis servers and shells end with it", { skip }, async (t) => {
  const args = [...TYPESCRIPT_ARGS, FILE];
  const child = spawn(...tieToParent(process.execPath, args), {
    stdio: ["ignore", "pipe", "inherit"],
  });
  t.teardown(() => child.kill("SIGKILL"));
  let said = "";
  const found = () => /^\{"pids":(.*)\}$/m.exec(said)?.[1];
  child.stdout.on("data", (text) => {
    said += text;
  });
  while (found() === undefined) await once(child.stdout, "data");
  const pids = JSON.parse(found() ?? "") as readonly number[];
  t.equal(pids.filter(lives).length, 4, "all live");
  child.kill("SIGKILL");
  while (pids.some(lives)) await new Promise((go) => setTimeout(go, 10));
  t.pass("none lives");
});
