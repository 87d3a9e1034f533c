// The store's files are readable only by the user who runs the store.

import { chmodSync, mkdirSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import type { Test } from "tap";
import { draftOf } from "../../../contract/store-fixture.ts";
import { t } from "../../../support/suite.ts";
import { openStore, testFolder } from "../folder.ts";

/** Returns the permissions of everything in the folder by path, including the folder itself. */
function permissionsIn(folder: string): Map<string, string> {
  const names = readdirSync(folder, { recursive: true, encoding: "utf8" });
  return new Map(
    ["", ...names].map((name) => {
      const { mode } = statSync(join(folder, name));
      return [name, (mode & 0o7777).toString(8)];
    }),
  );
}

function assertPrivate(t: Test, folder: string): void {
  const permissions = permissionsIn(folder);
  for (const name of ["", "journal", "lmdb"]) t.equal(permissions.get(name), "700");
  const files = [...permissions].filter(([name]) => name.includes("."));
  for (const [name, mode] of files) t.equal(mode, "600", name);
  t.equal(permissions.get("heartbeat"), "600");
  t.equal(permissions.size, files.length + 4, "the folder contains nothing else");
  t.ok(files.some(([name]) => name.endsWith(".log")));
  t.ok(files.some(([name]) => name.endsWith("data.mdb")));
  t.ok(files.some(([name]) => name.endsWith("lock.mdb")));
}

t.test("a new data folder and all its files are accessible only to their owner", async (t) => {
  const before = process.umask(0);
  t.teardown(() => process.umask(before));
  const path = join(testFolder(t), "new", "data");
  const store = await openStore(t, path, { segmentBytes: 64 });
  for (let i = 0; i < 3; i++) await store.append(draftOf());
  assertPrivate(t, path);
});

t.test(
  "a data folder that other users could read is accessible only to its owner after a start",
  async (t) => {
    const path = testFolder(t);
    const options = { segmentBytes: 64 };
    const first = await openStore(t, path, options);
    for (let i = 0; i < 3; i++) await first.append(draftOf());
    await first.close();
    for (const name of permissionsIn(path).keys())
      chmodSync(join(path, name), name.includes(".") ? 0o644 : 0o755);
    const store = await openStore(t, path, options);
    for (let i = 0; i < 3; i++) await store.append(draftOf());
    assertPrivate(t, path);
  },
);

t.test(
  "the permissions of an existing shared folder are not changed, and the data in it is accessible only to its owner",
  async (t) => {
    const path = join(testFolder(t), "shared");
    mkdirSync(path);
    chmodSync(path, 0o1777);
    await openStore(t, path);
    const permissions = permissionsIn(path);
    t.equal(permissions.get(""), "1777");
    t.equal(permissions.get("lmdb"), "700");
  },
);
