// A session as the directory in Redis keeps it, and the incarnation that serves it. `lua/rules.lua` is the other half: entries are written there. Pure.

import type { CloseReason } from "../../broker/errors.ts";
import type {
  DeviceFlag,
  DeviceLevel,
  SessionRecord,
} from "../../broker/model.ts";
import type { NewestLogin } from "../../broker/ports.ts";

/**
 * One process of a node from start to death: `<node id>:<random>`. One that was declared dead never comes back; its process begins another.
 */
export type Incarnation = string;

/** Names a new incarnation of a node. */
export function incarnationOf(nodeId: string, random: string): Incarnation {
  return `${nodeId}:${random}`;
}

function nodeOf(incarnation: Incarnation): string {
  return incarnation.slice(0, incarnation.lastIndexOf(":"));
}

/** A session in the directory, and the incarnation that serves it. */
export interface ServedSession {
  readonly session: SessionRecord;
  readonly incarnation: Incarnation;
}

/** What a script is given of a session, behind its id and incarnation. */
export function entryArgs(
  session: SessionRecord,
): readonly [flag: number, level: number, deviceId: string, tokenTag: string] {
  return [session.flag, session.level, session.deviceId, session.tokenTag];
}

/** Reads an entry of the user `uid`. */
export function readEntry(
  uid: string,
  sessionId: string,
  text: Buffer,
): ServedSession {
  const [, incarnation, , flag, level, deviceId, tokenTag] = JSON.parse(
    text.toString(),
  ) as [
    number,
    Incarnation,
    since: string,
    DeviceFlag,
    DeviceLevel,
    deviceId: string,
    tokenTag: string,
  ];
  const nodeId = nodeOf(incarnation);
  return {
    session: { sessionId, nodeId, uid, flag, level, deviceId, tokenTag },
    incarnation,
  };
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
