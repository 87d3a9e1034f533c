// The users of the benches of groups, by number, and the group that all of them are in. No state.

import type { ChannelRef } from "../../src/broker/model.ts";
import { Backend } from "./backend.ts";
import {
  CONNECTION_NUMBER,
  connectionNumber,
  freshMessageNumber,
  httpRequest,
  sendBody,
} from "./frames.ts";
import type { Server } from "./servers.ts";

/** The uid of a connection, with a place for its number. */
export const MEMBER = `member${CONNECTION_NUMBER}`;

export function memberName(index: number): string {
  return MEMBER.replace(CONNECTION_NUMBER, connectionNumber(index));
}

/** A request that sends a message to the channel, from the user of that number. */
export function memberPost(channel: ChannelRef, index: number): Uint8Array {
  const clientMsgNo = freshMessageNumber();
  const fromUid = memberName(index);
  return httpRequest("/message/send", sendBody({ channel, fromUid, clientMsgNo }));
}

/** Registers so many users and makes a group of them. */
export async function createMembers(
  { apiPort }: Pick<Server, "apiPort">,
  groupId: string,
  count: number,
): Promise<void> {
  const uids = Array.from({ length: count }, (_, at) => memberName(at));
  const backend = new Backend(apiPort);
  await backend.registerUsers(uids);
  await backend.createGroup(groupId, uids);
  backend.close();
}
