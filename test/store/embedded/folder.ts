// Builders for tests of the embedded store: a folder that is removed after the test, and stores in
// it.

import { cpSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { open } from "lmdb";
import type { Test } from "tap";
import type { Store } from "../../../src/broker/ports.ts";
import {
  createEmbeddedStore,
  type EmbeddedOptions,
  type EmbeddedStore,
} from "../../../src/store/embedded/store.ts";
import type { StoreDriver } from "../../contract/store-fixture.ts";
import { DATA_FOLDERS } from "../../support/data-folders.ts";

/** Creates a folder that is removed after the test. */
export function testFolder(t: Test, parent = DATA_FOLDERS): string {
  const folder = mkdtempSync(join(parent, "jindou-store-"));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/**
 * Creates a store without background work: tests call `checkpoint` and `sweep`. Reported problems
 * are thrown unless `over` has its own `onError`.
 */
export function storeIn(path: string, over: Partial<EmbeddedOptions> = {}): EmbeddedStore {
  return createEmbeddedStore({
    path,
    durability: "process",
    checkpointMs: 1_000_000,
    maxMemtableBytes: 64 * 1024 * 1024,
    dedupeWindowS: 86_400,
    retentionS: 0,
    maxChannelMessages: 0,
    sweepIntervalMs: 1_000_000,
    maxStreamBytes: 1_048_576,
    maxActiveStreamBytes: 268_435_456,
    maxInbox: 1000,
    inboxTtlS: 604_800,
    judgesBans: true,
    publisher: { publish() {} },
    clock: Date.now,
    onError(error, what) {
      if (what !== "Could not publish a stored event") throw error;
    },
    onLost(error) {
      throw error;
    },
    ...over,
  });
}

/** Creates a store whose `sweep` first writes everything to the database. */
export function sweptStoreIn(path: string, over: Partial<EmbeddedOptions> = {}): EmbeddedStore {
  const store = storeIn(path, over);
  return {
    ...store,
    async sweep() {
      await store.checkpoint();
      return store.sweep();
    },
  };
}

/** Returns the driver for the suites of the Store contract. Its folders are in `parent`. */
export function embeddedDriver(
  name: string,
  over: Partial<EmbeddedOptions> = {},
  parent = DATA_FOLDERS,
): StoreDriver {
  return {
    name,
    supportsClock: true,
    async createLocation(t) {
      const folder = testFolder(t, parent);
      return { create: (options) => sweptStoreIn(folder, { ...over, ...options }) };
    },
  };
}

/** Starts a store that is closed after the test. */
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

/**
 * Starts a store in the folder of a killed process. The kill may have interrupted a write, which
 * was not acknowledged and is removed.
 */
export function openAfterKill(t: Test, path: string): Promise<EmbeddedStore> {
  return openStore(t, path, {
    onError(error, what) {
      if (what !== "An unfinished or damaged last write was removed from the WAL") throw error;
    },
  });
}

/**
 * Gives a row of a closed store a version that no build can read. `at` is the row's index in the
 * order of keys.
 */
export async function damageRow(
  path: string,
  name: string,
  { at = 0, encoding = "binary" }: { at?: number; encoding?: "binary" | "msgpack" } = {},
): Promise<void> {
  const env = open({ path: join(path, "lmdb"), maxDbs: 48 });
  const table = env.openDB<unknown, Buffer>({ name, keyEncoding: "binary", encoding });
  const row = [...table.getRange({})].at(at);
  if (row === undefined) throw new Error(`the table ${name} has no row ${at}`);
  const { key, value } = row;
  await table.put(key, Buffer.isBuffer(value) ? Buffer.from([99, ...value.subarray(1)]) : [99]);
  await env.close();
}

const LOG_TABLES = ["logNames", "logHeads", "logFrames", "logProducers", "logExpiry"];

/** Returns the names of the tables with rows of logs, each name once for each row. */
export async function logRowsIn(folder: string): Promise<readonly string[]> {
  const env = open({ path: join(folder, "lmdb"), maxDbs: 48, readOnly: true });
  try {
    return LOG_TABLES.flatMap((name) => {
      const table = env.openDB({ name, keyEncoding: "binary" });
      return [...table.getKeys({})].map(() => name);
    });
  } finally {
    await env.close();
  }
}

/**
 * Returns a copy of the folder as a crash now would leave it, without an owner. The database must
 * be idle. `change` may edit the table `meta` of the copy.
 */
export async function crashedCopy(
  t: Test,
  path: string,
  change: (meta: Map<string, unknown[]>) => void = () => {},
): Promise<string> {
  const copy = copiedFolder(t, path);
  const env = open({ path: join(copy, "lmdb"), maxDbs: 16 });
  const meta = env.openDB<unknown[], string>({ name: "meta" });
  const facts = new Map([...meta.getRange()].map(({ key, value }) => [key, value]));
  facts.delete("owner");
  change(facts);
  await env.batch(() => {
    void meta.clearAsync();
    for (const [key, value] of facts) void meta.put(key, value);
  });
  await env.close();
  return copy;
}

/** Moves the position of the checkpoint to the start of the WAL, so that all of it is replayed. */
export function withoutCheckpoint(meta: Map<string, unknown[]>): void {
  meta.set("journal", [1, 1, 0, meta.get("journal")?.at(3)]);
}

/** Makes the checkpoint look as if it had been stored before the last boot of the machine. */
export function inAnotherBoot(meta: Map<string, unknown[]>): void {
  meta.set("journal", [...(meta.get("journal") ?? []).slice(0, 5), "f".repeat(32)]);
}

function copiedFolder(t: Test, path: string): string {
  const copy = testFolder(t);
  copyLive(path, copy);
  return copy;
}

/** Copies the WAL files of a folder to another folder, which keeps its other WAL files. */
export function copyWal(path: string, target: string): void {
  copyLive(join(path, "journal"), join(target, "journal"));
}

/**
 * Copies a folder of a running store. If the store deletes a WAL file in the meantime, which it
 * does some time after a checkpoint, the copy is repeated.
 */
function copyLive(path: string, target: string): void {
  for (;;)
    try {
      return cpSync(path, target, { recursive: true });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error; // an error of node:fs
    }
}

/** Returns the paths of the WAL files, oldest first. */
export function walFiles(path: string): string[] {
  const folder = join(path, "journal");
  return readdirSync(folder)
    .sort()
    .map((name) => join(folder, name));
}

/** Range of all messages of a channel. */
export const ALL = {
  fromSeq: 1,
  toSeq: Number.MAX_SAFE_INTEGER,
  limit: 1_000_000,
  reverse: false,
  maxBytes: Number.MAX_SAFE_INTEGER,
};

/** Returns the seqs of all messages of a channel. */
export async function seqsIn(store: Store, key = "2:g"): Promise<number[]> {
  const { messages } = await store.readMessages(key, ALL);
  return messages.map((m) => m.messageSeq);
}
