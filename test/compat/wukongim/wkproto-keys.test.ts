// Key agreements while the garbage collector runs. In Node.js 20, the whole process hangs if the
// collector runs while the public half of a new key pair is exported.

import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { TYPESCRIPT_ARGS } from "../../support/child.ts";
import { t } from "../../support/suite.ts";
import { volume } from "../../support/volume.ts";

const PROCESS = fileURLToPath(new URL("./key-agreements.ts", import.meta.url));
/** Number of agreements. With a small heap, the export hung after 2,000 to 8,000 agreements. */
const AGREEMENTS = volume(75_000);
const TIMEOUT_MS = 300_000;

t.test("thousands of key agreements do not hang the process", async (t) => {
  const args = [...TYPESCRIPT_ARGS, "--max-semi-space-size=1", PROCESS, `${AGREEMENTS}`];
  const { stdout } = await promisify(execFile)(process.execPath, args, { timeout: TIMEOUT_MS });
  t.equal(stdout, "done");
});
