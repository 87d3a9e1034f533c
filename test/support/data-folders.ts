// Chooses where tests keep the data of stores and Redis servers. In memory, an fsync takes no time.
// A kill of a process leaves the same files there as on a disk, so only tests of the disk itself
// need a disk. JINDOU_TEST_VOLUME=full keeps all data on the disk.

import { statfsSync } from "node:fs";
import { tmpdir } from "node:os";
import { IS_FULL } from "./volume.ts";

/** File system in memory, which Linux systems mount by default. */
const MEMORY = "/dev/shm";
/** Free bytes that all test files together need. In containers, /dev/shm often has only 64 MiB. */
const MIN_FREE_BYTES = 4 * 1024 ** 3;

/** Folder in which tests create the folders of their data. */
export const DATA_FOLDERS = !IS_FULL && hasMemory() ? MEMORY : tmpdir();

function hasMemory(): boolean {
  try {
    const { bavail, bsize } = statfsSync(MEMORY);
    return bavail * bsize >= MIN_FREE_BYTES;
  } catch {
    return false; // the system has no such folder
  }
}
