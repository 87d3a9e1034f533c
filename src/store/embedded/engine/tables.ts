// The tables of the embedded store and their format.

import {
  type BinaryTable,
  binaryTable,
  type Database,
  type DatabaseOptions,
  openDatabase,
  type Stored,
  type Table,
} from "./database.ts";

/** The newest data format this build reads and the one it writes. */
export const DATA_FORMAT = 4;

/**
 * Longest key of a channel, and longest id or label: any two fit a database key (1978 bytes). Edges
 * refuse far shorter ones.
 */
export const MAX_KEY_UNITS = 603;
export const MAX_LABEL_UNITS = 300;

/** The tables. Values are arrays that begin with a format version, or bytes that do. */
export interface Tables extends Database {
  /** [type, id] → flags and number of members. */
  readonly channels: Table<Stored, (string | number)[]>;
  /** [type, id, uid] → kinds of membership. */
  readonly members: Table<Stored, (string | number)[]>;
  /** [type, id, uid] → the lists of the channel it is on. */
  readonly lists: Table<Stored, (string | number)[]>;
  /** [type, id] → how many uids are on each list; no row: none. */
  readonly listSizes: Table<Stored, (string | number)[]>;
  /** [uid, group id] → the group's head when the user joined. */
  readonly groups: Table<Stored, string[]>;
  /** [uid, flag] → level and token hash. */
  readonly devices: Table<Stored, (string | number)[]>;
  /** [uid, flag] → the newest main login and until when it is kept. */
  readonly logins: Table<Stored, (string | number)[]>;
  /** username → password. */
  readonly managers: Table<Stored, string>;
  /** uid of a system account → nothing but a version. */
  readonly systemUids: Table<Stored, string>;
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
  /**
   * channel number, seq → where each event of an ended stream stood in its text, and the event ids
   * its producer chose.
   */
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
export function openTables(folder: string, options: DatabaseOptions = {}): Tables {
  const database = openDatabase(folder, DATA_FORMAT, options);
  const { env } = database;
  const binary = (name: string): BinaryTable => binaryTable(database, name);
  const keyed = (name: string): Table<Stored, Buffer> =>
    env.openDB({ name, keyEncoding: "binary" });
  try {
    return {
      ...database,
      channels: env.openDB({ name: "channels" }),
      members: env.openDB({ name: "members" }),
      lists: env.openDB({ name: "lists" }),
      listSizes: env.openDB({ name: "listSizes" }),
      groups: env.openDB({ name: "groups" }),
      devices: env.openDB({ name: "devices" }),
      logins: env.openDB({ name: "logins" }),
      managers: env.openDB({ name: "managers" }),
      systemUids: env.openDB({ name: "systemUids" }),
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
