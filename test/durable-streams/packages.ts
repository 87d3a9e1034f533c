// The npm packages that only the tests of this folder use (`.ci/packages` installs them), and
// programs that use them.

import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { packagesFolder } from "../support/packages.ts";

/** Folder whose `node_modules` has the packages. */
export const FOLDER = packagesFolder("durable-streams");

/** Writes a module beside the packages, so that it can import them. Returns its path. */
export async function writeModule(name: string, text: string): Promise<string> {
  const path = join(FOLDER, name);
  await writeFile(path, text);
  return path;
}

/** Imports a package by the path of its module below `node_modules`. */
// biome-ignore lint/suspicious/noExplicitAny: the types of the packages are not installed
export async function importPackage(path: string): Promise<any> {
  return import(pathToFileURL(join(FOLDER, "node_modules", path)).href);
}
