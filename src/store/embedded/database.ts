// Opens the LMDB environment and its tables and checks the format. Owns nothing after that: tables are used by the parts that know them.
// All writes go through `commit`: lmdb must not start writing outside a batch, or a failed commit rejects promises nobody holds.

import { type Database, open, type RootDatabase } from "lmdb";
import { BrokerError } from "../../broker/errors.ts";

/** The newest data format this build reads and the one it writes. */
export const DATA_FORMAT = 1;

type Table<
  Value,
  Key extends string | string[] | (string | number)[],
> = Database<Value, Key>;
type BinaryTable = Database<Buffer, Buffer>;
/** A stored value: its format version, then its fields. */
export type Stored = readonly unknown[];

/** The tables. Values are arrays that begin with a format version, or bytes that do. */
export interface Tables {
  readonly env: RootDatabase;
  /** Single facts about the whole: name → value. */
  readonly meta: Table<Stored, string>;
  /** [type, id] → flags and number of members. */
  readonly channels: Table<Stored, (string | number)[]>;
  /** [type, id, uid] → kinds of membership. */
  readonly members: Table<Stored, (string | number)[]>;
  /** [uid, group id] → nothing but a version. */
  readonly groups: Table<Stored, string[]>;
  /** [uid, flag] → level and token hash. */
  readonly devices: Table<Stored, (string | number)[]>;
  /** username → password. */
  readonly managers: Table<Stored, string>;
  /** token hash in hex → username and expiry. */
  readonly tokens: Table<Stored, string>;
  /** channel key → number and head. */
  readonly heads: Table<Stored, string>;
  /** channel number, seq → record. */
  readonly log: BinaryTable;
  /** expiry, channel number, seq → nothing but a version. */
  readonly expiry: BinaryTable;
  /** channel number, sender, clientMsgNo → first message; two generations. */
  readonly dedupe: readonly [BinaryTable, BinaryTable];
}

/** Opens or creates the database in `folder`. Throws when its format is newer than this build's. */
export function openTables(folder: string): Tables {
  const env = open({
    path: folder,
    maxDbs: 16,
    // Only explicit batches are atomic and only they hand out every promise (see the head of this file).
    eventTurnBatching: false,
  });
  try {
    const meta = env.openDB<Stored, string>({ name: "meta" });
    assertFormat(meta.get("format"));
    const binary = (name: string): BinaryTable =>
      env.openDB({ name, encoding: "binary", keyEncoding: "binary" });
    return {
      env,
      meta,
      channels: env.openDB({ name: "channels" }),
      members: env.openDB({ name: "members" }),
      groups: env.openDB({ name: "groups" }),
      devices: env.openDB({ name: "devices" }),
      managers: env.openDB({ name: "managers" }),
      tokens: env.openDB({ name: "tokens" }),
      heads: env.openDB({ name: "heads" }),
      log: binary("log"),
      expiry: binary("expiry"),
      dedupe: [binary("dedupe0"), binary("dedupe1")],
    };
  } catch (error) {
    void env.close();
    throw error;
  }
}

function assertFormat(format: Stored | undefined): void {
  if (format === undefined) return;
  const [version] = format;
  if (typeof version === "number" && version <= DATA_FORMAT) return;
  throw new BrokerError("internal", {
    message: `The data has format ${version}; this build reads up to ${DATA_FORMAT}. Start the newer build that wrote it`,
  });
}

/** Makes the puts and removes that `steps` issues (synchronously) one transaction; resolves when it is committed. Throws `unavailable`. */
export async function commit(tables: Tables, steps: () => void): Promise<void> {
  try {
    await tables.env.batch(steps);
  } catch (cause) {
    throw new BrokerError("unavailable", { cause: await causeOf(cause) });
  }
}

/** lmdb rejects with an error that holds a promise of the real one; unread, that promise would count as unhandled. */
async function causeOf(error: unknown): Promise<unknown> {
  if (!(error instanceof Error) || !("commitError" in error)) return error;
  try {
    await error.commitError;
    return error;
  } catch (cause) {
    return cause;
  }
}

/** Resolves when everything committed before is on the disk. */
export async function flushed(tables: Tables): Promise<void> {
  await tables.env.flushed;
}

/** The fields of a stored value behind its version. Throws `internal` when the value is newer than `known`. */
export function fieldsOf(value: Stored, known = 1): readonly unknown[] {
  const [version, ...fields] = value;
  if (typeof version === "number" && version <= known) return fields;
  throw new BrokerError("internal", {
    message: `A stored value has format ${version}; this build reads up to ${known}`,
  });
}
