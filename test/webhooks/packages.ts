// The packages for the tests of webhooks, which .ci/packages installs.

import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { packagesFolder } from "../support/packages.ts";

/** Folder whose `node_modules` contains the packages. */
export const FOLDER = packagesFolder("webhooks");

/** Folder of the Python packages, or `undefined` if they could not be installed. */
export const PYTHON = existsSync(join(FOLDER, "python")) ? join(FOLDER, "python") : undefined;

const requireFrom = createRequire(join(FOLDER, "package.json"));

// biome-ignore lint/suspicious/noExplicitAny: the types of the packages are not installed
export function requirePackage(name: string): any {
  return requireFrom(name);
}
