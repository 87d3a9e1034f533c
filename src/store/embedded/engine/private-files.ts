// Restricts the data folder to its owner: folders get the mode 0700 and files 0600, including those
// that an older build or a copy left readable by other users. Touches only the folders and files of
// the store. No state.

import { chmodSync, mkdirSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";

const PRIVATE_FOLDER = 0o700;
export const PRIVATE_FILE = 0o600;
const PERMISSIONS = 0o777;
/** Sticky bit. It marks a shared folder such as /tmp, whose mode is not changed. */
const STICKY = 0o1000;

/**
 * Creates missing folders, and restricts the modes of the folders and files. The mode of another
 * user's file cannot be changed. Only the first failed change is reported. Throws a file system
 * error if a folder cannot be created or read.
 */
export function restrictToOwner(
  folder: string,
  names: { readonly folders: readonly string[]; readonly file: string },
  onError: (error: Error, what: string) => void,
): void {
  const folders = names.folders.map((name) => join(folder, name));
  for (const path of [folder, ...folders])
    mkdirSync(path, { recursive: true, mode: PRIVATE_FOLDER });
  const files = folders.flatMap((path) => readdirSync(path).map((name) => join(path, name)));
  const failures: unknown[] = [];
  const close = (path: string, mode: number) => {
    try {
      restrict(path, mode);
    } catch (error) {
      failures.push(error);
    }
  };
  for (const path of [folder, ...folders]) close(path, PRIVATE_FOLDER);
  for (const path of [join(folder, names.file), ...files]) close(path, PRIVATE_FILE);
  const [first] = failures;
  if (first !== undefined)
    onError(
      first as Error, // an error of the file system
      "Could not make the data folder private; other users of this machine may be able to read it",
    );
}

function restrict(path: string, mode: number): void {
  const stats = statSync(path, { throwIfNoEntry: false });
  if (stats === undefined || (stats.mode & STICKY) !== 0) return;
  if ((stats.mode & PERMISSIONS) !== mode) chmodSync(path, mode);
}
