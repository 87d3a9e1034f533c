// Packages that `.ci/packages` installs for rooms of `test`, and that are not part of Jindou.

import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const SCRIPT = fileURLToPath(new URL("../../.ci/packages", import.meta.url));

/** Returns the folder whose `node_modules` contains the packages of the room. */
export function packagesFolder(room: string): string {
  return execFileSync(SCRIPT, ["--print", room], { encoding: "utf8" }).trim();
}
