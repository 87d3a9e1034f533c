// A database that fails when a test says so.

import { ABORT } from "lmdb";
import type { DatabaseWrites } from "../../../src/store/embedded/engine/database.ts";

/**
 * Real writes of which chosen ones fail: the commit of that number from now on (1 is the next one),
 * and every flush.
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
      await new Promise((resolve) => setTimeout(resolve, 5)); // those behind it get through
      throw new Error("MDB_MAP_FULL");
    },
    async flushed(env) {
      await env.flushed;
      if (fail.flush) throw new Error("EIO");
    },
  };
  return { fail, databaseWrites };
}
