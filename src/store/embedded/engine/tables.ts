// The tables of the embedded store and the version of the data format.

import {
  type BinaryTable,
  binaryTable,
  type Database,
  type DatabaseOptions,
  openDatabase,
  type Stored,
  type Table,
} from "./database.ts";

/** Data format that this build reads and writes. */
export const DATA_FORMAT = 10;

/** Maximum lengths in UTF-16 code units. A label is a uid, a channel id or another short string. */
export const MAX_KEY_UNITS = 603;
export const MAX_LABEL_UNITS = 300;

/**
 * A value is an array or a byte string, and begins with a format version. In the comments, the key
 * is on the left of the arrow and the value on the right. `type` and `id` identify a channel.
 */
export interface Tables extends Database {
  /** [type, id] → flags and number of members. */
  readonly channels: Table<Stored, (string | number)[]>;
  /** [type, id, uid] → kinds of membership. */
  readonly members: Table<Stored, (string | number)[]>;
  /** [type, id, uid] → the channel's lists that contain the uid. */
  readonly lists: Table<Stored, (string | number)[]>;
  /** [type, id] → number of uids on each list. No row if both lists are empty. */
  readonly listSizes: Table<Stored, (string | number)[]>;
  /** [uid, group id] → the group's newest seq at the time the user joined. */
  readonly groups: Table<Stored, string[]>;
  /**
   * [uid, flag] → level, token hash and last logout of the device. [uid, "ban"] → only a version:
   * the account is banned.
   */
  readonly devices: Table<Stored, (string | number)[]>;
  /** [uid, flag] → newest main login and the time until which it is kept. */
  readonly logins: Table<Stored, (string | number)[]>;
  /** uid of a user who has been announced as online → device flag. */
  readonly online: Table<Stored, string>;
  /** username → password hash. */
  readonly managers: Table<Stored, string>;
  /** uid of a system account → only a version. */
  readonly systemUids: Table<Stored, string>;
  /** number of a signing key → secret and creation time. */
  readonly signingKeys: Table<Stored, number>;
  /** [kind, endpoint id, name] → the endpoint's settings, a delivery state or a parked event. */
  readonly webhooks: Table<Stored, string[]>;
  /** token hash in hex → username and expiry time. */
  readonly tokens: Table<Stored, string>;
  /** channel key → number of the channel, and seq, `counted` and id of its newest message. */
  readonly heads: Table<Stored, string>;
  /** channel number, first seq → one record or a chunk of records (see log-rows.ts). */
  readonly log: BinaryTable;
  /** number of an active stream's log → only a version. */
  readonly streamsActive: BinaryTable;
  /**
   * [scope, end time, channel number, seq] → channel key and clientMsgNo of an ended stream. The
   * scope is the channel key of a group, or `u:` followed by a uid. A stream in a personal channel
   * has a row for each of the channel's users.
   */
  readonly streamEnds: Table<Stored, (string | number)[]>;
  /** hash of a log's name → number of the log. */
  readonly logNames: Table<Stored, Buffer>;
  /** number of a log → name and state. The row of a small closed log also has its frames. */
  readonly logHeads: Table<Stored, Buffer>;
  /** number of a log, position → frames that begin at this position (see steps/stored-logs.ts). */
  readonly logFrames: BinaryTable;
  /** number of a log, producer id → newest request of the producer. */
  readonly logProducers: Table<Stored, Buffer>;
  /** expiry time of a log, number of the log → only a version. */
  readonly logExpiry: BinaryTable;
  /** partition, number of the first event → up to 64 events (see event-rows.ts). */
  readonly events: Table<Stored, Buffer>;
  /** Like `events`, for on-demand events. Event numbers are consecutive across both tables. */
  readonly onDemandEvents: Table<Stored, Buffer>;
  /** key of an event → an event that may have no number yet (see steps/event-outbox.ts). */
  readonly outbox: Table<Stored, number>;
  /** expiry time, channel number, seq → only a version. */
  readonly expiry: BinaryTable;
  /**
   * channel number, sender, clientMsgNo → the first message. One table for each of the last two
   * generations (see steps/dedupe.ts).
   */
  readonly dedupe: readonly [BinaryTable, BinaryTable];
  /** [uid, channel key] → read position and deletion position of the user. */
  readonly positions: Table<Stored, string[]>;
  /** [uid, uid of a peer] → only a version. A personal channel has two rows, one for each order. */
  readonly peers: Table<Stored, string[]>;
  /** channel number, uid → seq of the newest message that the user sent. */
  readonly own: BinaryTable;
  /** channel number, seq → times of a message that has a red dot and expires. */
  readonly expiring: BinaryTable;
  /** expiry time, message id → record of a command. */
  readonly commands: BinaryTable;
  /** expiry time, message id → uid and inboxSeq of each copy of a command. */
  readonly commandCopies: BinaryTable;
  /** expiry time, message id → number of remaining copies. Without a row, all copies remain. */
  readonly commandLeft: BinaryTable;
  /** channel key → seq and time of the newest imported message. */
  readonly imported: Table<Stored, string>;
  /** channel number, source id of an imported message → seq of the message. */
  readonly labels: BinaryTable;
  /** uid, inboxSeq → sender, and expiry time and message id of the command. */
  readonly inbox: BinaryTable;
  /** uid → last inboxSeq and number of copies. */
  readonly inboxes: BinaryTable;
  /** uid, uid of a sender → number of the sender's copies in the inbox. Backends have no row. */
  readonly inboxSenders: BinaryTable;
}

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
      online: env.openDB({ name: "online" }),
      managers: env.openDB({ name: "managers" }),
      systemUids: env.openDB({ name: "systemUids" }),
      signingKeys: env.openDB({ name: "signingKeys" }),
      webhooks: env.openDB({ name: "webhooks" }),
      tokens: env.openDB({ name: "tokens" }),
      heads: env.openDB({ name: "heads" }),
      log: binary("log"),
      streamsActive: binary("streamsActive"),
      streamEnds: env.openDB({ name: "streamEnds" }),
      logNames: keyed("logNames"),
      logHeads: keyed("logHeads"),
      logFrames: binary("logFrames"),
      logProducers: keyed("logProducers"),
      logExpiry: binary("logExpiry"),
      events: keyed("events"),
      onDemandEvents: keyed("onDemandEvents"),
      outbox: env.openDB({ name: "outbox" }),
      expiry: binary("expiry"),
      dedupe: [binary("dedupe0"), binary("dedupe1")],
      positions: env.openDB({ name: "positions" }),
      peers: env.openDB({ name: "peers" }),
      own: binary("own"),
      expiring: binary("expiring"),
      commands: binary("commands"),
      commandCopies: binary("commandCopies"),
      commandLeft: binary("commandLeft"),
      imported: env.openDB({ name: "imported" }),
      labels: binary("labels"),
      inbox: binary("inbox"),
      inboxes: binary("inboxes"),
      inboxSenders: binary("inboxSenders"),
    };
  } catch (error) {
    void env.close();
    throw error;
  }
}
