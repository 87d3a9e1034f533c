// Reads the embedded store's tables row by row for a move: people and channels. Rows are fetched a few at a time and no cursor stays open between
// them. No state.

import type { Key, RangeOptions } from "lmdb";
import type {
  ChannelType,
  DeviceFlag,
  DeviceLevel,
} from "../../broker/model.ts";
import type { Moved, MovedRow } from "../moved.ts";
import { fieldsOf, type Stored, type Tables } from "./database.ts";
import { ownerOf } from "./managers.ts";

/** Rows fetched at once. */
const CHUNK = 500;
const GROUP_VERSION = 2;
const PERMANENT = 1;
const TEMPORARY = 2;

/** What is needed of a table whose keys are strings or arrays. */
interface RowTable {
  getRange(
    options: RangeOptions,
  ): Iterable<{ readonly key: Key; readonly value: Stored }>;
}

/** Every row of a table behind the key `at` (as JSON; "": all). */
export function* rowsOf<K>(
  table: RowTable,
  at: string,
): Generator<{ readonly key: K; readonly value: Stored; readonly at: string }> {
  let last: Key | undefined = at === "" ? undefined : JSON.parse(at);
  for (;;) {
    const bounds = { limit: CHUNK };
    const chunk = [
      ...table.getRange(
        last === undefined
          ? bounds
          : { ...bounds, start: last, exclusiveStart: true },
      ),
    ];
    for (const { key, value } of chunk)
      yield { key: key as K, value, at: JSON.stringify(key) }; // lmdb's type of keys is that of all tables
    last = chunk.at(-1)?.key;
    if (last === undefined || chunk.length < CHUNK) return;
  }
}

/** A table's rows behind a place in it. */
export type TableRows = (tables: Tables, at: string) => Generator<MovedRow>;

function table<K>(
  name: string,
  {
    of,
    read,
  }: {
    readonly of: (tables: Tables) => RowTable;
    readonly read: (key: K, value: Stored) => Moved;
  },
): TableRows {
  return function* (tables, at) {
    for (const row of rowsOf<K>(of(tables), at))
      yield {
        moved: read(row.key, row.value),
        place: { table: name, at: row.at },
      };
  };
}

export const exportDevices = table<[uid: string, flag: number]>("devices", {
  of: (tables) => tables.devices,
  read([uid, flag], value) {
    const [level, tokenHash] = fieldsOf(value);
    return {
      kind: "device",
      device: {
        uid: uid,
        flag: flag as DeviceFlag, // as written
        level: level as DeviceLevel,
        tokenHash: Uint8Array.from(tokenHash as Uint8Array),
      },
    };
  },
});

export const exportPasswords = table<string>("managers", {
  of: (tables) => tables.managers,
  read: (username, value) => ({
    kind: "password",
    username,
    passwordHash: String(fieldsOf(value)[0]),
  }),
});

export const exportTokens = table<string>("tokens", {
  of: (tables) => tables.tokens,
  read: (hash, value) => ({ kind: "token", hash, ...ownerOf(value) }),
});

export const exportChannels = table<[type: number, id: string]>("channels", {
  of: (tables) => tables.channels,
  read([type, id], value) {
    const [ban, disband, sendBan, allowStranger, large] = fieldsOf(value).map(
      (field) => field === true,
    );
    return {
      kind: "channel",
      info: {
        id: id,
        type: type as ChannelType, // as written
        ban: ban === true,
        disband: disband === true,
        sendBan: sendBan === true,
        allowStranger: allowStranger === true,
        large: large === true,
      },
    };
  },
});

export const exportMembers = table<[type: number, id: string, uid: string]>(
  "members",
  {
    of: (tables) => tables.members,
    read([type, id, uid], value) {
      const kinds = Number(fieldsOf(value)[0]);
      return {
        kind: "member",
        channel: { id: id, type: type as ChannelType }, // as written
        uid: uid,
        permanent: (kinds & PERMANENT) !== 0,
        temporary: (kinds & TEMPORARY) !== 0,
      };
    },
  },
);

export const exportGroups = table<[uid: string, id: string]>("groups", {
  of: (tables) => tables.groups,
  read: ([uid, channelId], value) => ({
    ...{ kind: "group", uid, channelId },
    joinSeq: Number(fieldsOf(value, GROUP_VERSION)[0] ?? 0),
  }),
});

/** Without those in channels that have no message any more (a power loss took them): their seqs would be other messages'. */
export function* exportPositions(
  tables: Tables,
  at: string,
): Generator<MovedRow> {
  for (const row of allPositions(tables, at))
    if (row.moved.kind === "position" && hasHead(tables, row.moved.key))
      yield row;
}

function hasHead({ heads }: Tables, key: string): boolean {
  return heads.get(key) !== undefined;
}

const allPositions = table<[uid: string, key: string]>("positions", {
  of: (tables) => tables.positions,
  read([uid, key], value) {
    const [readSeq, deletedSeq, headAtChange, changedAtMs] =
      fieldsOf(value).map(Number);
    return {
      ...{ kind: "position", uid, key },
      readSeq: readSeq ?? 0,
      deletedSeq: deletedSeq ?? 0,
      headAtChange: headAtChange ?? 0,
      changedAtMs: changedAtMs ?? 0,
    };
  },
});
