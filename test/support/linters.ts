// Finds the programs that .ci/linters installs.

import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { delimiter, join } from "node:path";
import { fileURLToPath } from "node:url";

const SCRIPT = fileURLToPath(new URL("../../.ci/linters", import.meta.url));

/** A program. `skip` is the reason to skip tests that need it, `false` if it is installed. */
export interface Linter {
  readonly path: string;
  readonly skip: string | false;
}

export function findLinter(name: "hadolint" | "haproxy" | "promtool"): Linter {
  const cache = execFileSync(SCRIPT, ["--print"], { encoding: "utf8" }).trim();
  const folders = [...(process.env.PATH ?? "").split(delimiter), "/usr/sbin", cache];
  const path = folders.map((folder) => join(folder, name)).find((file) => existsSync(file));
  return { path: path ?? name, skip: path === undefined ? `${name} is not installed` : false };
}
