// A copy of this project as it is after a clone, for tests of what people do first with one.

import { cp, mkdtemp, rm, symlink, utimes } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Test } from "tap";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const LEFT_OUT = /\/(node_modules|dist|dist-client|data|\.git|\.tap|\.build|results)$/;

/** Its folder. What is installed here is installed there; nothing is built. */
export async function freshCopy(t: Test): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "jindou-fresh-"));
  t.teardown(() => rm(folder, { recursive: true, force: true }));
  const filter = (source: string) => !LEFT_OUT.test(source);
  await cp(ROOT, folder, { recursive: true, filter });
  await symlink(join(ROOT, "node_modules"), join(folder, "node_modules"));
  await utimes(join(folder, "package-lock.json"), 0, 0); // older than what is installed
  return folder;
}
