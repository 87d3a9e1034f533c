// What the cluster bench compares: our nodes with users and groups, or the peer's, each with the
// bytes that its clients say. No state.

import { Backend, TOKEN } from "./backend.ts";
import type { Nodes } from "./clusters.ts";
import {
  CONNECTION_NUMBER,
  clientFrame,
  connectFrame,
  connectionNumber,
  frameStart,
  freshMessageNumber,
  httpRequest,
  NATIVE_UPGRADE,
  PAYLOAD,
  sampleMessage,
  sendBody,
  upgradeRequest,
} from "./frames.ts";
import type { Opening } from "./load.ts";
import { MEMBER, memberName, memberPost } from "./members.ts";

const SENDER = `sender${CONNECTION_NUMBER}`;
const RECEIVER = `receiver${CONNECTION_NUMBER}`;
const EACH_GROUP = `each${CONNECTION_NUMBER}`;
const FEW = 10;

/** Groups of each contender: of all members, and of the first ten. */
export const GROUPS = {
  many: { id: "many", type: 2 },
  few: { id: "few", type: 2 },
} as const;
export type Group = (typeof GROUPS)[keyof typeof GROUPS];

export interface Contender {
  readonly nodes: Nodes;
  /** Of the members' connections, by their number. */
  readonly opening: Opening;
  /** What a group's message begins with, as its members get it. */
  readonly replyStart: Uint8Array;
  /** A request that tells the group something. */
  publish(group: Group): Uint8Array;
}

/** Our nodes; makes their users and groups. */
export async function contender(nodes: Nodes, members: number): Promise<Contender> {
  const uids = Array.from({ length: members }, (_, at) => memberName(at));
  const backend = new Backend(nodes.servers[0]?.apiPort ?? 0);
  await backend.registerUsers(uids);
  await backend.createGroup(GROUPS.many.id, uids);
  await backend.createGroup(GROUPS.few.id, uids.slice(0, FEW));
  backend.close();
  const fromUid = memberName(0);
  const push = sampleMessage({
    ...{ channel: GROUPS.many, fromUid, clientMsgNo: freshMessageNumber() },
  });
  return {
    nodes,
    opening: { upgrade: NATIVE_UPGRADE, open: connectFrame(MEMBER, TOKEN) },
    replyStart: frameStart(push),
    publish: (group) => memberPost(group, 0),
  };
}

/**
 * Socket.IO's nodes: `0…` opens its engine, `40` joins and is answered with `40…`, `42[…]` is an
 * event. All who connect are of one room.
 */
export function peer(nodes: Nodes): Contender {
  return {
    nodes,
    opening: {
      upgrade: upgradeRequest("/socket.io/?EIO=4&transport=websocket"),
      open: clientFrame("40"),
      replies: 2,
    },
    replyStart: Buffer.from('42["message",'),
    publish: (group) =>
      httpRequest(
        "/",
        JSON.stringify({
          channel_id: group.id,
          from_uid: memberName(0),
          client_msg_no: freshMessageNumber(),
          payload: JSON.parse(Buffer.from(PAYLOAD).toString()),
        }),
      ),
  };
}

/**
 * A message of the first ten to their group, all from one of them. `isKeyed`: with a
 * `client_msg_no` of the sender's.
 */
export function groupRequest(isKeyed: boolean): Uint8Array {
  return httpRequest(
    "/message/send",
    sendBody({
      ...{ channel: GROUPS.few, fromUid: memberName(0) },
      clientMsgNo: isKeyed ? freshMessageNumber() : undefined,
    }),
  );
}

/** Groups of the first member alone, one for each of so many publishing connections. */
export async function createGroupForEach(
  { servers: [server] }: Nodes,
  connections: number,
): Promise<void> {
  const backend = new Backend(server?.apiPort ?? 0);
  for (let at = 0; at < connections; at++) {
    const id = EACH_GROUP.replace(CONNECTION_NUMBER, connectionNumber(at));
    await backend.createGroup(id, [memberName(0)]);
  }
  backend.close();
}

/** A message to the connection's own group. `isKeyed`: with a `client_msg_no` of the sender's. */
export function eachGroupRequest(isKeyed: boolean): Uint8Array {
  return httpRequest(
    "/message/send",
    sendBody({
      ...{ channel: { id: EACH_GROUP, type: 2 }, fromUid: memberName(0) },
      clientMsgNo: isKeyed ? freshMessageNumber() : undefined,
    }),
  );
}

/** A message to somebody who is not there, from a user of each connection. */
export function sendRequest(): Uint8Array {
  return httpRequest(
    "/message/send",
    sendBody({
      channel: { id: RECEIVER, type: 1 },
      fromUid: SENDER,
      clientMsgNo: freshMessageNumber(),
    }),
  );
}
