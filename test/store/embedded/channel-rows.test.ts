// Numbers of channels: once given they are given for good, whatever fails in between.

import { join } from "node:path";
import t from "tap";
import { ChannelRows } from "../../../src/store/embedded/channel-rows.ts";
import {
  openTables,
  type Tables,
} from "../../../src/store/embedded/database.ts";
import { testFolder } from "./folder.ts";

/** The same tables, whose next commit fails. */
function failingOnce(tables: Tables): Tables {
  let isFirst = true;
  const batch = (steps: () => void) => {
    if (!isFirst) return tables.env.batch(steps);
    isFirst = false;
    return Promise.reject(new Error("no room"));
  };
  return {
    ...tables,
    env: Object.assign(Object.create(tables.env), { batch }),
  };
}

t.test(
  "a number taken before a commit that failed is kept by the next one",
  async (t) => {
    const tables = openTables(join(testFolder(t), "lmdb"));
    t.teardown(() => tables.env.close());
    const rows = new ChannelRows(failingOnce(tables));
    const number = rows.takeNumber();
    await t.rejects(rows.keepNumbers(), { code: "unavailable" });
    await rows.keepNumbers(); // the checkpoint is tried again; nothing new is taken
    t.ok(new ChannelRows(tables).takeNumber() > number);
  },
);
