// The contenders of the cluster bench: our nodes with users and groups, or the peer's nodes, with
// the bytes that their clients send.

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
const FEW_MEMBERS = 10;

/** Groups of each contender: one of all members, and one of the first ten. */
export const GROUPS = {
  many: { id: "many", type: 2 },
  few: { id: "few", type: 2 },
} as const;
export type Group = (typeof GROUPS)[keyof typeof GROUPS];

export interface Contender {
  readonly nodes: Nodes;
  /**
   * First bytes that each member's connection sends, with a placeholder for the connection number.
   */
  readonly opening: Opening;
  /** First bytes of a group's message as its members receive it. */
  readonly replyStart: Uint8Array;
  /** Returns an HTTP request that publishes a message to the group. */
  publish(group: Group): Uint8Array;
}

/** Creates users and groups on our nodes and returns them as a contender. */
export async function createContender(nodes: Nodes, members: number): Promise<Contender> {
  const uids = Array.from({ length: members }, (_, at) => memberName(at));
  const backend = new Backend(nodes.servers[0]?.apiPort ?? 0);
  await backend.registerUsers(uids);
  await backend.createGroup(GROUPS.many.id, uids);
  await backend.createGroup(GROUPS.few.id, uids.slice(0, FEW_MEMBERS));
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
 * Returns Socket.IO's nodes as a contender. In its protocol, the server first sends `0…`, the
 * client joins with `40`, and the server confirms with `40…`. After that, `42[…]` is an event. All
 * sockets are in one room.
 */
export function peerContender(nodes: Nodes): Contender {
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
 * Returns a request that sends a message to the group of ten members. With `isKeyed`, the sender
 * sets a `client_msg_no`.
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

/** Creates a group for each publishing connection. User 0 is the only member of each group. */
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

/**
 * Returns a request that sends a message to the connection's own group. With `isKeyed`, the sender
 * sets a `client_msg_no`.
 */
export function eachGroupRequest(isKeyed: boolean): Uint8Array {
  return httpRequest(
    "/message/send",
    sendBody({
      ...{ channel: { id: EACH_GROUP, type: 2 }, fromUid: memberName(0) },
      clientMsgNo: isKeyed ? freshMessageNumber() : undefined,
    }),
  );
}

/**
 * Returns a request that sends a message to an offline user. Each connection has its own sender
 * and receiver, because `CONNECTION_NUMBER` is part of their ids.
 */
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
