// Sets the modes of the data folder and its files. Other users of the machine get no access. The
// group gets access only if the folder is a volume that is shared through a group, as in Kubernetes
// (`fsGroup`) and OpenShift. Such a volume belongs to a uid other than that of the process, or has
// the setgid bit [decisions: Files].

import {
  chmodSync,
  fchmodSync,
  mkdirSync,
  openSync,
  readdirSync,
  type Stats,
  statSync,
} from "node:fs";
import { dirname, join } from "node:path";

const PRIVATE = { folder: 0o700, file: 0o600 };
const SHARED = { folder: 0o2770, file: 0o660 };
const ALL_BITS = 0o7777;
const OTHERS = 0o007;
const SETGID = 0o2000;
/**
 * Sticky bit. It marks a folder that all users can write to, such as /tmp. The mode of such a
 * folder is not changed.
 */
const STICKY = 0o1000;

function modesIn(folder: string) {
  return isShared(statSync(folder)) ? SHARED : PRIVATE;
}

function isShared({ mode, uid }: Stats): boolean {
  if ((mode & STICKY) !== 0) return false;
  return (mode & SETGID) !== 0 || uid !== process.geteuid?.();
}

/**
 * Creates a folder and its parents. Does not use the option `recursive`, with which `mkdirSync` may
 * never return for a path below /proc.
 */
export function makeFolder(path: string): void {
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory()) return;
  const parent = dirname(path);
  if (parent !== path) makeFolder(parent);
  mkdirSync(path, { mode: PRIVATE.folder }); // inherits the setgid bit
}

export function makeInnerFolder(path: string): void {
  const { folder: mode } = modesIn(dirname(path));
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory()) return;
  mkdirSync(path, { mode: PRIVATE.folder });
  if (mode !== PRIVATE.folder) chmodSync(path, mode); // ignores the umask
}

export function createFile(path: string, flag: "w" | "wx"): number {
  const { file: mode } = modesIn(dirname(path));
  const fd = openSync(path, flag, PRIVATE.file);
  if (mode !== PRIVATE.file) fchmodSync(fd, mode); // ignores the umask
  return fd;
}

/**
 * Sets the modes of the data folder and its files. Continues after an error, and returns the first
 * error.
 */
export function restrictAccess(
  folder: string,
  names: { readonly folders: readonly string[]; readonly file: string },
): Error | undefined {
  const shared = isShared(statSync(folder));
  const folders = names.folders.map((name) => join(folder, name));
  const files = folders.flatMap((path) => readdirSync(path).map((name) => join(path, name)));
  const paths = [folder, ...folders, join(folder, names.file), ...files];
  let failure: Error | undefined;
  for (const path of paths)
    try {
      restrict(path, shared);
    } catch (error) {
      failure ??= error as Error; // an error of the file system
    }
  return failure;
}

function restrict(path: string, shared: boolean): void {
  const stats = statSync(path, { throwIfNoEntry: false });
  if (stats === undefined || (stats.mode & STICKY) !== 0) return;
  const mode = modeOf(stats, shared);
  if ((stats.mode & ALL_BITS) !== mode) chmodSync(path, mode);
}

function modeOf(stats: Stats, shared: boolean): number {
  const kind = stats.isDirectory() ? "folder" : "file";
  if (!shared) return PRIVATE[kind];
  // Another user's file or folder keeps its group's access, because the person who set up the
  // volume chose that access.
  if (stats.uid !== process.geteuid?.()) return stats.mode & ALL_BITS & ~OTHERS;
  return SHARED[kind];
}
