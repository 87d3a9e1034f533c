// Copies this project as a new clone would contain it, for tests of the first steps of a new user.

import { cp, mkdir, mkdtemp, readdir, rm, symlink, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Test } from "tap";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const EXCLUDED = /\/(node_modules|dist|dist-backend|dist-client|data|\.git|\.tap|\.build|results)$/;

/** File whose presence tells the set-up script of `package.json` that packages are installed. */
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
 * Creates the folder with a symlink to each installed package and a new set-up mark. `npm ci` would
 * follow a single symlink to the whole `node_modules`, and delete the packages of this project.
 */
async function linkPackages(folder: string): Promise<void> {
  const installed = join(ROOT, "node_modules");
  await mkdir(folder);
  for (const name of await readdir(installed))
    if (name !== SETUP_MARK) await symlink(join(installed, name), join(folder, name));
  await writeFile(join(folder, SETUP_MARK), "");
}
