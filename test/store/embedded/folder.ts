// Builders for tests of the embedded store: a folder that goes away with the test, and stores in it.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Test } from "tap";
import {
  createEmbeddedStore,
  type EmbeddedOptions,
  type EmbeddedStore,
} from "../../../src/store/embedded/store.ts";

export function testFolder(t: Test): string {
  const folder = mkdtempSync(join(tmpdir(), "jindou-store-"));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** Background work does not come by itself: tests call `checkpoint` and `sweep`. Problems are thrown unless `over` takes them. */
export function storeIn(
  path: string,
  over: Partial<EmbeddedOptions> = {},
): EmbeddedStore {
  return createEmbeddedStore({
    path,
    durability: "process",
    checkpointMs: 1_000_000,
    maxTailBytes: 64 * 1024 * 1024,
    maxTailRecords: 500_000,
    segmentBytes: 64 * 1024 * 1024,
    dedupeWindowS: 86_400,
    retentionS: 0,
    sweepIntervalMs: 1_000_000,
    publisher: { publish() {} },
    clock: Date.now,
    onProblem(error, what) {
      if (what !== "publish") throw error;
    },
    ...over,
  });
}

/** A started store that is closed with the test. */
export async function openStore(
  t: Test,
  path: string,
  over: Partial<EmbeddedOptions> = {},
): Promise<EmbeddedStore> {
  const store = storeIn(path, over);
  await store.start();
  t.teardown(() => store.close());
  return store;
}
