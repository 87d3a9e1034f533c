// Numbered users for the benches that use groups, and the group to which all of them belong.

import type { ChannelRef } from "../../src/broker/model.ts";
import { backendOf } from "./backend.ts";
import {
  CONNECTION_NUMBER,
  connectionNumber,
  freshMessageNumber,
  httpRequest,
  sendBody,
} from "./frames.ts";
import type { Server } from "./servers.ts";

/** Uid of a connection's user, with a placeholder for the connection number. */
export const MEMBER = `member${CONNECTION_NUMBER}`;

export function memberName(index: number): string {
  return MEMBER.replace(CONNECTION_NUMBER, connectionNumber(index));
}

/** Returns a request that sends a message to the channel, from the user with this number. */
export function memberPost(channel: ChannelRef, index: number): Uint8Array {
  const clientMsgNo = freshMessageNumber();
  const fromUid = memberName(index);
  return httpRequest("/message/send", sendBody({ channel, fromUid, clientMsgNo }));
}

/** Registers `count` users and creates a group of them. */
export async function createMembers(
  server: Pick<Server, "apiPort" | "host" | "apiToken">,
  groupId: string,
  count: number,
): Promise<void> {
  const uids = Array.from({ length: count }, (_, at) => memberName(at));
  const backend = backendOf(server);
  await backend.registerUsers(uids);
  await backend.createGroup(groupId, uids);
  backend.close();
}
