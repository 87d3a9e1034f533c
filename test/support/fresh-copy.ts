// Copies this project as a new clone would contain it, for tests of the first steps of a new user.

import { cp, mkdir, mkdtemp, readdir, rm, symlink, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Test } from "tap";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const EXCLUDED = /\/(node_modules|dist|dist-backend|dist-client|data|\.git|\.tap|\.build|results)$/;

/** Mark of the set-up in `package.json`: the packages need not be installed again. */
const SETUP_MARK = ".jindou-setup";

/** Returns the folder of the copy. Its packages are installed (symlinks), but nothing is built. */
export async function freshCopy(t: Test): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "jindou-fresh-"));
  t.teardown(() => rm(folder, { recursive: true, force: true }));
  const filter = (source: string) => !EXCLUDED.test(source);
  await cp(ROOT, folder, { recursive: true, filter });
  await linkPackages(join(folder, "node_modules"));
  await utimes(join(folder, "package-lock.json"), 0, 0); // older than the mark
  return folder;
}

/**
 * Fills the folder with a symlink to each installed package, and with a mark of its own. A symlink
 * to the whole `node_modules` would be followed by `npm ci`, which would then delete the packages
 * of this project.
 */
async function linkPackages(folder: string): Promise<void> {
  const installed = join(ROOT, "node_modules");
  await mkdir(folder);
  for (const name of await readdir(installed))
    if (name !== SETUP_MARK) await symlink(join(installed, name), join(folder, name));
  await writeFile(join(folder, SETUP_MARK), "");
}
