// Opens the LMDB environment and its tables and checks the format. Owns nothing after that: tables are used by the parts that know them.
// All writes go through `commit`: lmdb must not start writing outside a batch, or a failed commit rejects promises nobody holds.

import { type Database, open, type RootDatabase } from "lmdb";
import { BrokerError } from "../../broker/errors.ts";

/** The newest data format this build reads and the one it writes. */
export const DATA_FORMAT = 3;
const FENCE = "owner";

type Table<
  Value,
  Key extends Buffer | string | string[] | (string | number)[],
> = Database<Value, Key>;
type BinaryTable = Database<Buffer, Buffer>;
/** A stored value: its format version, then its fields. */
export type Stored = readonly unknown[];

/** Makes what `steps` issues one transaction; resolves when it is committed, false: nothing was written, the folder has another owner. */
export type Batch = (steps: () => void) => Promise<boolean>;

/** The calls on the database that tests make fail. */
export interface DatabaseWrites {
  /** `write` is the real one. */
  batch(env: RootDatabase, steps: () => void, write: Batch): Promise<boolean>;
  /** Resolves when everything committed before is on the disk. */
  flushed(env: RootDatabase): Promise<unknown>;
}

const REAL_WRITES: DatabaseWrites = {
  batch: (_env, steps, write) => write(steps),
  flushed: (env) => env.flushed,
};

/**
 * The fencing token of the folder's owner. LMDB compares it inside every write transaction, so a process that lost the folder while it
 * was paused writes nothing, at whatever instruction it was paused.
 */
export class Fence {
  readonly #table: Database<Stored, string>;
  #incarnation: number | undefined;
  #onLost: (() => BrokerError) | undefined;

  /** `table` keeps versions: that of the one row is the owner's incarnation. */
  constructor(table: Database<Stored, string>) {
    this.#table = table;
  }

  /** To be called inside a transaction: no owner before may write from its commit on. Returns the new owner's incarnation. */
  next(): number {
    const incarnation = (this.#table.getEntry(FENCE)?.version ?? 0) + 1;
    this.#table.putSync(FENCE, [1], incarnation);
    return incarnation;
  }

  /** Lets this process write while it is the owner. `onLost` is called when a write finds that it is not. */
  open(incarnation: number, onLost: () => BrokerError): void {
    this.#incarnation = incarnation;
    this.#onLost = onLost;
  }

  readonly write: Batch = (steps) => {
    if (this.#incarnation === undefined)
      throw new Error("The data folder has no owner yet"); // a bug
    return this.#table.ifVersion(FENCE, this.#incarnation, steps);
  };

  lost(): BrokerError {
    return this.#onLost?.() ?? new BrokerError("unavailable");
  }
}

/** The tables. Values are arrays that begin with a format version, or bytes that do. */
export interface Tables {
  readonly env: RootDatabase;
  readonly writes: DatabaseWrites;
  readonly fence: Fence;
  /** Single facts about the whole: name → value. */
  readonly meta: Table<Stored, string>;
  /** [type, id] → flags and number of members. */
  readonly channels: Table<Stored, (string | number)[]>;
  /** [type, id, uid] → kinds of membership. */
  readonly members: Table<Stored, (string | number)[]>;
  /** [uid, group id] → the group's head when the user joined. */
  readonly groups: Table<Stored, string[]>;
  /** [uid, flag] → level and token hash. */
  readonly devices: Table<Stored, (string | number)[]>;
  /** [uid, flag] → the newest main login and until when it is kept. */
  readonly logins: Table<Stored, (string | number)[]>;
  /** username → password. */
  readonly managers: Table<Stored, string>;
  /** token hash in hex → username and expiry. */
  readonly tokens: Table<Stored, string>;
  /** channel key → number, head and its count. */
  readonly heads: Table<Stored, string>;
  /** channel number, first seq → one record or a chunk of them (see log-rows.ts). */
  readonly log: BinaryTable;
  /** channel number, seq → nothing but a version: the message's stream is active. */
  readonly streamsActive: BinaryTable;
  /** channel number, seq, first index → events of an active stream. */
  readonly streamParts: BinaryTable;
  /** channel number, seq → what an ended stream came to. */
  readonly streams: Table<Stored, Buffer>;
  /** channel number, seq → where each event of an ended stream stood in its text, and the event ids its producer chose. */
  readonly streamTraces: Table<Stored, Buffer>;
  /** channel number, clientMsgNo → seq and end of an ended stream. */
  readonly streamNames: Table<Stored, Buffer>;
  /** expiry, channel number, seq → nothing but a version. */
  readonly expiry: BinaryTable;
  /** channel number, sender, clientMsgNo → first message; two generations. */
  readonly dedupe: readonly [BinaryTable, BinaryTable];
  /** [uid, channel key] → where the user set the read position. */
  readonly positions: Table<Stored, string[]>;
  /** [uid, uid] of two that have a personal channel, in both orders → nothing but a version. */
  readonly peers: Table<Stored, string[]>;
  /** channel number, uid → the user's newest own seq. */
  readonly own: BinaryTable;
  /** channel number, seq of a red-dot message that expires → when. */
  readonly expiring: BinaryTable;
  /** expiry, message id → the record of a command. */
  readonly commands: BinaryTable;
  /** expiry, message id → whose inboxes got it, and under which inboxSeqs. */
  readonly commandCopies: BinaryTable;
  /** expiry, message id → how many inboxes still hold it; no row: all that got it. */
  readonly commandLeft: BinaryTable;
  /** uid, inboxSeq → expiry and message id. */
  readonly inbox: BinaryTable;
  /** uid → last inboxSeq and number of copies. */
  readonly inboxes: BinaryTable;
}

/** Opens or creates the database in `folder`. Throws when its format is newer than this build's. */
export function openTables(
  folder: string,
  writes: DatabaseWrites = REAL_WRITES,
): Tables {
  const env = open({
    path: folder,
    maxDbs: 48,
    // Only explicit batches are atomic and only they hand out every promise (see the head of this file).
    eventTurnBatching: false,
  });
  try {
    const meta = env.openDB<Stored, string>({ name: "meta" });
    assertFormat(meta.get("format"));
    const binary = (name: string): BinaryTable =>
      env.openDB({ name, encoding: "binary", keyEncoding: "binary" });
    const keyed = (name: string): Table<Stored, Buffer> =>
      env.openDB({ name, keyEncoding: "binary" });
    return {
      env,
      writes,
      fence: new Fence(env.openDB({ name: "fence", useVersions: true })),
      meta,
      channels: env.openDB({ name: "channels" }),
      members: env.openDB({ name: "members" }),
      groups: env.openDB({ name: "groups" }),
      devices: env.openDB({ name: "devices" }),
      logins: env.openDB({ name: "logins" }),
      managers: env.openDB({ name: "managers" }),
      tokens: env.openDB({ name: "tokens" }),
      heads: env.openDB({ name: "heads" }),
      log: binary("log"),
      streamsActive: binary("streamsActive"),
      streamParts: binary("streamParts"),
      streams: keyed("streams"),
      streamTraces: keyed("streamTraces"),
      streamNames: keyed("streamNames"),
      expiry: binary("expiry"),
      dedupe: [binary("dedupe0"), binary("dedupe1")],
      positions: env.openDB({ name: "positions" }),
      peers: env.openDB({ name: "peers" }),
      own: binary("own"),
      expiring: binary("expiring"),
      commands: binary("commands"),
      commandCopies: binary("commandCopies"),
      commandLeft: binary("commandLeft"),
      inbox: binary("inbox"),
      inboxes: binary("inboxes"),
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

/**
 * Makes the puts and removes that `steps` issues (synchronously) one transaction; resolves when it is committed. Throws `unavailable`, also
 * when the folder has another owner: nothing is written then.
 */
export async function commit(
  { env, writes, fence }: Pick<Tables, "env" | "writes" | "fence">,
  steps: () => void,
): Promise<void> {
  let isOwner: boolean;
  try {
    isOwner = await writes.batch(env, steps, fence.write);
  } catch (cause) {
    throw new BrokerError("unavailable", { cause: await causeOf(cause) });
  }
  if (!isOwner) throw fence.lost();
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

/** Resolves when everything committed before is on the disk. Throws `unavailable`. */
export async function flushed(tables: Tables): Promise<void> {
  try {
    await tables.writes.flushed(tables.env);
  } catch (cause) {
    throw new BrokerError("unavailable", { cause: await causeOf(cause) });
  }
}

/** The fields of a stored value behind its version. Throws `internal` when the value is newer than `known`. */
export function fieldsOf(value: Stored, known = 1): readonly unknown[] {
  const [version, ...fields] = value;
  if (typeof version === "number" && version <= known) return fields;
  throw new BrokerError("internal", {
    message: `A stored value has format ${version}; this build reads up to ${known}`,
  });
}
