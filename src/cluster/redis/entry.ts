// A session as the directory in Redis keeps it, and the life it belongs to. `lua/rules.lua` is the other half: entries are written there. Pure.

import type {
  DeviceFlag,
  DeviceLevel,
  SessionRecord,
} from "../../broker/model.ts";

/** One process of a node from start to death: `<node id>:<random>`. A life that was declared dead never comes back; its process begins another. */
export type Life = string;

/** Names a new life of a node. */
export function lifeOf(nodeId: string, random: string): Life {
  return `${nodeId}:${random}`;
}

function nodeOf(life: Life): string {
  return life.slice(0, life.lastIndexOf(":"));
}

/** A session in the directory, and the life that serves it. */
export interface Entry {
  readonly session: SessionRecord;
  readonly life: Life;
}

/** What a step is told of a session, behind its id and life. */
export function entryArgs(
  session: SessionRecord,
): readonly [flag: number, level: number, deviceId: string, tokenTag: string] {
  return [session.flag, session.level, session.deviceId, session.tokenTag];
}

/** Reads an entry of the user `uid`. */
export function readEntry(uid: string, sessionId: string, text: Buffer): Entry {
  const [, life, , flag, level, deviceId, tokenTag] = JSON.parse(
    text.toString(),
  ) as [
    number,
    Life,
    since: string,
    DeviceFlag,
    DeviceLevel,
    deviceId: string,
    tokenTag: string,
  ];
  const nodeId = nodeOf(life);
  return {
    session: { sessionId, nodeId, uid, flag, level, deviceId, tokenTag },
    life,
  };
}

/** Reads `sessionId, entry, …` as steps answer it. */
export function readSessions(
  uid: string,
  reply: readonly Buffer[],
): readonly SessionRecord[] {
  return Array.from({ length: reply.length / 2 }, (_, at) => {
    const [id, text] = reply.slice(2 * at, 2 * at + 2) as [Buffer, Buffer];
    return readEntry(uid, id.toString(), text).session;
  });
}
