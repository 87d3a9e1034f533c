// Database writes that fail when a test requests a failure.

import { ABORT } from "lmdb";
import type { DatabaseWrites } from "../../../src/store/embedded/engine/database.ts";

/**
 * Returns database calls that work, and the settings that make them fail. `commit` is the number of
 * the commit that fails, counted from now (1 is the next one). With `flush` every flush fails.
 */
export function brittleDatabase() {
  const fail = { commit: 0, flush: false, commits: 0 };
  const databaseWrites: DatabaseWrites = {
    async batch(env, steps, write) {
      fail.commits++;
      if (fail.commit === 0 || --fail.commit > 0) return write(steps);
      env.transactionSync(() => {
        steps();
        return ABORT;
      });
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
