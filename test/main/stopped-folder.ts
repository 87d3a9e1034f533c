// Data folders of nodes that have stopped.

import { writeFileSync } from "node:fs";
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
