// File calls that fail when a test requests a failure.

import * as fs from "node:fs";
import type { WalFiles } from "../../../src/store/embedded/engine/wal.ts";

/** Returns file calls that work, and the settings that make them fail. */
export function brittleFiles() {
  const fail = { write: 0, short: 0, truncate: false, sync: false, folderSync: false };
  const files: WalFiles = {
    writeSync(fd, data, offset, length, position) {
      if (fail.short > 0) {
        fail.short--;
        return fs.writeSync(fd, data, offset, Math.ceil(length / 2), position);
      }
      if (fail.write > 0) {
        fail.write--;
        throw Object.assign(new Error("full"), { code: "ENOSPC" });
      }
      return fs.writeSync(fd, data, offset, length, position);
    },
    ftruncateSync(fd, length) {
      if (fail.truncate) throw new Error("EIO");
      fs.ftruncateSync(fd, length);
    },
    fdatasync(fd, done) {
      if (fail.sync) setImmediate(done, new Error("EIO"));
      else fs.fdatasync(fd, done);
    },
    fsyncSync(fd) {
      if (fail.folderSync) throw new Error("EIO");
      fs.fsyncSync(fd);
    },
  };
  return { fail, files };
}
