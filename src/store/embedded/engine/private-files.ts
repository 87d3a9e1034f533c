// Closes the data folder to other users of the machine: folders 0700, files 0600, also those an
// older build or a copy left open. Touches only what the store itself makes. No state.

import { chmodSync, mkdirSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";

const PRIVATE_FOLDER = 0o700;
export const PRIVATE_FILE = 0o600;
const PERMISSIONS = 0o777;
/** A folder that is meant to be shared, as /tmp: what is in it is closed, it is not. */
const STICKY = 0o1000;

/**
 * Makes the folders that are not there, and closes what is. What belongs to another user is left as
 * it is; the first of it is reported.
 */
export function closeToOthers(
  folder: string,
  parts: { readonly folders: readonly string[]; readonly file: string },
  onError: (error: Error, what: string) => void,
): void {
  const folders = parts.folders.map((name) => join(folder, name));
  for (const path of [folder, ...folders])
    mkdirSync(path, { recursive: true, mode: PRIVATE_FOLDER });
  const files = folders.flatMap((path) => readdirSync(path).map((name) => join(path, name)));
  const failed: unknown[] = [];
  const close = (path: string, mode: number) => {
    try {
      restrict(path, mode);
    } catch (error) {
      failed.push(error);
    }
  };
  for (const path of [folder, ...folders]) close(path, PRIVATE_FOLDER);
  for (const path of [join(folder, parts.file), ...files]) close(path, PRIVATE_FILE);
  const [first] = failed;
  if (first !== undefined)
    onError(
      first as Error, // the file system's
      "The data folder could not be closed to other users",
    );
}

function restrict(path: string, wanted: number): void {
  const found = statSync(path, { throwIfNoEntry: false });
  if (found === undefined || (found.mode & STICKY) !== 0) return;
  if ((found.mode & PERMISSIONS) !== wanted) chmodSync(path, wanted);
}
