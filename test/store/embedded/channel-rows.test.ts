// Numbers of channels: no number is assigned twice, even if a commit fails.

import { join } from "node:path";
import { ChannelRows } from "../../../src/store/embedded/engine/channel-rows.ts";
import { commit } from "../../../src/store/embedded/engine/database.ts";
import { FolderLock } from "../../../src/store/embedded/engine/folder-lock.ts";
import { openTables } from "../../../src/store/embedded/engine/tables.ts";
import { t } from "../../support/suite.ts";
import { brittleDatabase } from "./brittle-database.ts";
import { testFolder } from "./folder.ts";

t.test(
  "a channel number that was assigned before a failed commit is never assigned again",
  async (t) => {
    const { fail, databaseWrites } = brittleDatabase();
    const folder = testFolder(t);
    const tables = openTables(join(folder, "lmdb"), {
      writes: databaseWrites,
    });
    const owner = new FolderLock(tables, folder, () => {});
    await owner.acquire();
    t.teardown(async () => {
      owner.release();
      await tables.env.close();
    });
    const rows = new ChannelRows(tables);
    const number = rows.nextNumber();
    fail.commit = 1;
    await t.rejects(rows.storeCounter(), { code: "unavailable" });
    await rows.storeCounter(); // the checkpoint is tried again, without a new number
    t.ok(new ChannelRows(tables).nextNumber() > number);

    const next = rows.nextNumber();
    fail.commit = 1;
    await t.rejects(
      commit(tables, () => rows.putCounter()),
      { code: "unavailable" },
    );
    await rows.storeCounter();
    t.ok(new ChannelRows(tables).nextNumber() > next, "the counter of a failed import is stored");
  },
);
