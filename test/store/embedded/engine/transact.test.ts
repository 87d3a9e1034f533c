// Steps inside a transaction: nothing changes between the reads and writes of a step, a step that
// fails writes nothing, and no step runs in a folder with another owner. Imports internal modules,
// because calls of the store show only the results of their own steps.

import { join } from "node:path";
import type { Test } from "tap";
import { BrokerError } from "../../../../src/broker/errors.ts";
import { commit, transact } from "../../../../src/store/embedded/engine/database.ts";
import { FolderLock } from "../../../../src/store/embedded/engine/folder-lock.ts";
import { openTables } from "../../../../src/store/embedded/engine/tables.ts";
import { t } from "../../../support/suite.ts";
import { brittleDatabase } from "../brittle-database.ts";
import { testFolder } from "../folder.ts";

const NAME = "count";

async function openOwned(t: Test) {
  const { fail, databaseWrites } = brittleDatabase();
  const folder = testFolder(t);
  const tables = openTables(join(folder, "lmdb"), { writes: databaseWrites });
  let lost = 0;
  const owner = new FolderLock(tables, folder, () => {
    lost++;
  });
  await owner.acquire();
  t.teardown(async () => {
    owner.release();
    await tables.env.close();
  });
  const count = () => Number(tables.meta.get(NAME)?.[1] ?? 0);
  const put = (value: number) => void tables.meta.put(NAME, [1, value]);
  return { tables, fail, count, put, losses: () => lost };
}

t.test(
  "concurrent transaction steps run one after the other, and each step reads the writes of the earlier steps",
  async (t) => {
    const { tables, count, put } = await openOwned(t);
    const [, ...results] = await Promise.all([
      commit(tables, () => put(100)),
      ...Array.from({ length: 50 }, () =>
        transact(tables, () => {
          const before = count();
          put(before + 1);
          return before;
        }),
      ),
    ]);
    t.same(
      results,
      Array.from({ length: 50 }, (_, i) => 100 + i),
    );
    t.equal(count(), 150);
  },
);

t.test(
  "a transaction step that throws writes nothing, and the other steps are not affected",
  async (t) => {
    const { tables, count, put } = await openOwned(t);
    const refused = new BrokerError("too_large");
    const calls = [
      transact(tables, () => put(1)),
      transact(tables, () => {
        put(2);
        throw refused;
      }),
      transact(tables, () => {
        put(3);
        throw new TypeError("a bug");
      }),
      transact(tables, () => count()),
    ];
    const [, own, bug, last] = await Promise.allSettled(calls);
    t.match(own, { status: "rejected", reason: refused });
    t.match(bug, { status: "rejected", reason: { code: "unavailable" } });
    t.match(last, { status: "fulfilled", value: 1 });
    t.equal(count(), 1);
  },
);

t.test("a failed commit writes nothing and rejects the call", async (t) => {
  const { tables, fail, count, put } = await openOwned(t);
  fail.commit = 1;
  await t.rejects(
    transact(tables, () => put(1)),
    { code: "unavailable" },
  );
  t.equal(count(), 0);
  await transact(tables, () => put(2));
  t.equal(count(), 2);
});

t.test("no transaction step runs in a folder that another process has acquired", async (t) => {
  const { tables, count, put, losses } = await openOwned(t);
  // Acts as another process that acquires the folder.
  tables.env.transactionSync(() => tables.fence.next());
  let ran = false;
  await t.rejects(
    transact(tables, () => {
      ran = true;
      put(1);
    }),
    { code: "unavailable" },
  );
  t.equal(ran, false, "the step did not run");
  t.equal(count(), 0);
  t.equal(losses(), 1, "the loss of the folder is reported once");
});
