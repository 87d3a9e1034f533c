// Copies this project as a new clone would contain it, for tests of the first steps of a new user.

import { cp, mkdtemp, rm, symlink, utimes } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Test } from "tap";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const EXCLUDED = /\/(node_modules|dist|dist-client|data|\.git|\.tap|\.build|results)$/;

/** Returns the folder of the copy. Its packages are installed (a symlink), but nothing is built. */
export async function freshCopy(t: Test): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "jindou-fresh-"));
  t.teardown(() => rm(folder, { recursive: true, force: true }));
  const filter = (source: string) => !EXCLUDED.test(source);
  await cp(ROOT, folder, { recursive: true, filter });
  await symlink(join(ROOT, "node_modules"), join(folder, "node_modules"));
  await utimes(join(folder, "package-lock.json"), 0, 0); // older than the installed packages
  return folder;
}
