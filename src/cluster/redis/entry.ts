// A session as the directory in Redis keeps it, and the life it belongs to. `lua/rules.lua` is the other half: entries are written there. Pure.

import type { CloseReason } from "../../broker/errors.ts";
import type {
  DeviceFlag,
  DeviceLevel,
  SessionRecord,
} from "../../broker/model.ts";
import type { EndedSession, NewestLogin } from "../../broker/ports.ts";

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

/** Reads `sessionId, entry, reason, …` of sessions that were ended. */
export function readEnded(
  uid: string,
  reply: readonly Buffer[],
): readonly EndedSession[] {
  return Array.from({ length: reply.length / 3 }, (_, at) => {
    const [id, text, reason] = reply.slice(3 * at, 3 * at + 3) as [
      Buffer,
      Buffer,
      Buffer,
    ];
    const { session } = readEntry(uid, id.toString(), text);
    return { session, reason: reason.toString() as EndedSession["reason"] };
  });
}

/** Reads a newest login as `rules.lua` writes it; its labels are the scripts' business. */
export function readLogin(text: Buffer): NewestLogin {
  const [, order, since, deviceId, label, ended] = JSON.parse(
    text.toString(),
  ) as [number, string, string, string, string, CloseReason | ""];
  return {
    order: Number(order),
    since: Number(since),
    ...{ deviceId, label, past: [] },
    ended: ended === "" ? undefined : ended,
  };
}
