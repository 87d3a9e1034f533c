// Builds to measure: the working tree and, with `--against`, another commit in a temporary git
// worktree that shares the installed packages. Must not remove a worktree that it did not add.

import { execFile } from "node:child_process";
import { existsSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { build } from "rolldown";
import type { Workbench } from "./workbench.ts";

const run = promisify(execFile);

export const ROOT: string = fileURLToPath(new URL("../..", import.meta.url));

/** Returns the directory of the working tree. Throws if it has not been built. */
export function buildHere(): string {
  if (!existsSync(join(ROOT, "dist/main.js")))
    throw new Error("dist/ is missing. Run npm run build.");
  return ROOT;
}

/** Returns the abbreviated hash of the commit `ref`. Rejects if there is no such commit. */
export async function commitOf(ref: string): Promise<string> {
  const { stdout } = await run("git", ["rev-parse", "--short", `${ref}^{commit}`], { cwd: ROOT });
  return stdout.trim();
}

export interface Build {
  readonly directory: string;
  remove(): Promise<void>;
}

/**
 * Compiles `commit` in a worktree. If the commit's lock file differs from that of the working tree,
 * the commit's packages are installed in the worktree.
 */
export async function buildCommit(commit: string, workbench: Workbench): Promise<Build> {
  const directory = join(workbench.folder("build"), "tree");
  await run("git", ["worktree", "prune"], { cwd: ROOT }); // unregisters worktrees of killed runs
  await run("git", ["worktree", "add", "--detach", directory, commit], {
    cwd: ROOT,
  });
  const remove = async () => {
    await run("git", ["worktree", "remove", "--force", directory], {
      cwd: ROOT,
    });
  };
  try {
    if (await hasOurPackages(commit))
      symlinkSync(join(ROOT, "node_modules"), join(directory, "node_modules"));
    else await run("npm", ["ci", "--include=dev"], { cwd: directory });
    await compile(directory);
  } catch (error) {
    await remove();
    throw error;
  }
  return { directory, remove };
}

async function hasOurPackages(commit: string): Promise<boolean> {
  return run("git", ["diff", "--quiet", commit, "--", "package-lock.json"], {
    cwd: ROOT,
  }).then(
    () => true,
    () => false,
  );
}

async function compile(directory: string): Promise<void> {
  if (!existsSync(join(directory, "node_modules/esbuild")))
    throw new Error(`No packages are installed in ${directory}. Run npm ci there.`);
  await run("npm", ["run", "--silent", "build:server"], { cwd: directory });
}

/**
 * Bundles the embedded store in `directory` as a separate module and returns its path. The module
 * is inside `directory`, so that it finds the packages with native code.
 */
export async function bundleStore(directory: string): Promise<string> {
  const outfile = join(directory, ".build/bench-store.mjs");
  await build({
    cwd: directory,
    input: "src/store/embedded/store.ts",
    platform: "node",
    transform: { target: "node20" },
    external: ["lmdb", "msgpackr"],
    output: { file: outfile, codeSplitting: false },
  });
  return outfile;
}
