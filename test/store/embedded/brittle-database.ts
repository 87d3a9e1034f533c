// Database writes that fail when a test requests a failure.

import { ABORT, type RootDatabase } from "lmdb";
import type { DatabaseWrites } from "../../../src/store/embedded/engine/database.ts";

/**
 * Returns database calls that work, and the settings that make them fail. `commit` is the number of
 * the commit that fails, counted from now (1 is the next one). With `flush` every flush fails. With
 * `lost` every commit reports success although nothing is written, and with `stuck` no commit ever
 * settles, as lmdb does on a full disk.
 */
export function brittleDatabase() {
  const fail = { commit: 0, flush: false, lost: false, stuck: false, commits: 0 };
  const databaseWrites: DatabaseWrites = {
    async batch(env, steps, write) {
      fail.commits++;
      if (fail.stuck) return new Promise(() => {});
      if (fail.lost) {
        rollBack(env, steps);
        return true;
      }
      if (fail.commit === 0 || --fail.commit > 0) return write(steps);
      rollBack(env, steps);
      await new Promise((resolve) => setTimeout(resolve, 5)); // later commits are written meanwhile
      throw new Error("MDB_MAP_FULL");
    },
    async flushed(env) {
      await env.flushed;
      if (fail.flush) throw new Error("EIO");
    },
  };
  return { fail, databaseWrites };
}

/** Runs the steps in a transaction that is not committed. */
function rollBack(env: RootDatabase, steps: () => void): void {
  env.transactionSync(() => {
    steps();
    return ABORT;
  });
}
