// The id of a store. The database and each WAL segment contain it, so that a different store's WAL
// is recognised. Keeps no state.

import { randomBytes } from "node:crypto";
import { closeSync, openSync, readSync } from "node:fs";
import { join } from "node:path";
import { BrokerError } from "../../../broker/errors.ts";
import { awaitFlush, commit, type Database, fieldsOf } from "./database.ts";
import {
  listSegments,
  readSegmentHeader,
  SEGMENT_HEADER_BYTES,
  STORE_ID_BYTES,
  segmentName,
} from "./segment.ts";

const STORE = "store";
const VERSION = 1;

/** Returns the store's id in hexadecimal digits. Assigns an id to a new database. */
export async function ensureStoreId(database: Database): Promise<string> {
  const stored = database.meta.get(STORE);
  if (stored !== undefined) return String(fieldsOf(stored, VERSION)[0]);
  const id = randomBytes(STORE_ID_BYTES).toString("hex");
  await commit(database, () => void database.meta.put(STORE, [VERSION, id]));
  // If a power loss removed only the id, the first segment would seem to belong to a different
  // store.
  await awaitFlush(database);
  return id;
}

/**
 * Throws `internal` if a different store wrote one of the segments, even if that segment need not
 * be replayed.
 */
export function assertWalOf(storeId: string, folder: string): void {
  for (const index of listSegments(folder)) {
    const path = join(folder, segmentName(index));
    const header = readSegmentHeader(startOf(path));
    if (header.kind === "ok" && header.storeId !== storeId)
      throw new BrokerError("internal", {
        message: `The WAL file ${path} belongs to a different store from the database in this data folder. Restore lmdb/, journal/ and heartbeat from the same copy.`,
      });
  }
}

function startOf(path: string): Buffer {
  const bytes = Buffer.alloc(SEGMENT_HEADER_BYTES);
  const fd = openSync(path, "r");
  try {
    return bytes.subarray(0, readSync(fd, bytes, 0, bytes.length, 0));
  } finally {
    closeSync(fd);
  }
}
