// Data folders of nodes that have stopped.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Test } from "tap";
import { draftOf } from "../contract/store-fixture.ts";
import { storeIn } from "../store/embedded/folder.ts";
import { tempFolder } from "../support/broker.ts";

/** Returns a folder with 300 messages whose store was stopped cleanly. */
export async function stoppedFolder(t: Test): Promise<string> {
  const path = join(await tempFolder(t), "data");
  const store = storeIn(path);
  await store.start();
  const payload = new Uint8Array(3000);
  await Promise.all(Array.from({ length: 300 }, () => store.append(draftOf({ payload }))));
  await store.close();
  return path;
}

/** Returns the path of the database of a data folder. */
export const dataFile = (path: string) => join(path, "lmdb", "data.mdb");

/** Makes the folder look as if its last owner had been killed. */
export function forgetStop(path: string): void {
  writeFileSync(join(path, "heartbeat"), "");
}

// Layout of an LMDB database (see database-check.ts).
const PAGE = 4096;
const PAGE_FLAGS_AT = 18;
const ROOT_AT = 136;
const TRANSACTION_AT = 152;
/** Offset of the number of a table's root page from the end of the table's name. */
const ROOT_OF_TABLE_AT = 40;

/** Makes the root page of a table unreadable. */
export function damageTable(path: string, name: string): void {
  const bytes = readFileSync(dataFile(path));
  const numberAt = (at: number) => Number(bytes.readBigUInt64LE(at));
  const [newest = 0] = [0, PAGE].sort(
    (a, b) => numberAt(b + TRANSACTION_AT) - numberAt(a + TRANSACTION_AT),
  );
  const key = `${name}\0`;
  const nameAt = bytes.indexOf(key, numberAt(newest + ROOT_AT) * PAGE);
  const root = numberAt(nameAt + key.length + ROOT_OF_TABLE_AT);
  bytes.writeUInt16LE(0, root * PAGE + PAGE_FLAGS_AT);
  writeFileSync(dataFile(path), bytes);
}
