// The packages that .ci/webhooks installs.

import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const script = fileURLToPath(new URL("../../.ci/webhooks", import.meta.url));

/** Folder whose `node_modules` has the packages. */
export const FOLDER = execFileSync(script, ["--print"], { encoding: "utf8" }).trim();

/** Folder of the Python packages, `undefined` if they could not be installed. */
export const PYTHON = existsSync(join(FOLDER, "python")) ? join(FOLDER, "python") : undefined;

const requireFrom = createRequire(join(FOLDER, "package.json"));

// biome-ignore lint/suspicious/noExplicitAny: the types of the packages are not installed
export function requirePackage(name: string): any {
  return requireFrom(name);
}
