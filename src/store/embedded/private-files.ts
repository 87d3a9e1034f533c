// Closes the data folder to other users of the machine: folders 0700, files 0600, also those an older build or a copy left open. Touches only
// what the store itself makes. No state.

import { chmodSync, mkdirSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";

const PRIVATE_FOLDER = 0o700;
export const PRIVATE_FILE = 0o600;
const PERMISSIONS = 0o777;
/** A folder that is meant to be shared, as /tmp: what is in it is closed, it is not. */
const STICKY = 0o1000;

/** Makes the folders that are not there, and closes what is. A file that belongs to another user is left as it is, and reported. */
export function closeToOthers(
  folder: string,
  parts: { readonly folders: readonly string[]; readonly file: string },
  onProblem: (error: Error, what: string) => void,
): void {
  const folders = parts.folders.map((name) => join(folder, name));
  for (const path of [folder, ...folders])
    mkdirSync(path, { recursive: true, mode: PRIVATE_FOLDER });
  const files = folders.flatMap((path) =>
    readdirSync(path).map((name) => join(path, name)),
  );
  try {
    for (const path of [folder, ...folders]) restrict(path, PRIVATE_FOLDER);
    for (const path of [join(folder, parts.file), ...files])
      restrict(path, PRIVATE_FILE);
  } catch (error) {
    onProblem(
      error as Error,
      "The data folder could not be closed to other users",
    ); // the file system's error
  }
}

function restrict(path: string, wanted: number): void {
  const found = statSync(path, { throwIfNoEntry: false });
  if (found === undefined || (found.mode & STICKY) !== 0) return;
  if ((found.mode & PERMISSIONS) !== wanted) chmodSync(path, wanted);
}
