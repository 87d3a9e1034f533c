// Jindou: the build of this working tree, with an empty embedded store or as several nodes on one
// Redis, or a server that runs elsewhere. Users and groups are created over the HTTP API, as a
// backend does.

import { type ChannelRef, STREAM_CONTENT, STREAM_START } from "../../src/broker/model.ts";
import { backendOf, TOKEN } from "../support/backend.ts";
import { buildHere } from "../support/builds.ts";
import { type Redis, startNodes, startRedis } from "../support/clusters.ts";
import {
  CHUNK_TEXT,
  CONNECTION_NUMBER,
  connectFrame,
  eventBody,
  freshMessageNumber,
  httpRequest,
  jsonRpcRequest,
  jsonRpcStart,
  NATIVE_UPGRADE,
  sampleMessage,
  sampleSendack,
  sendBody,
  sendFrame,
  upgradeRequest,
} from "../support/frames.ts";
import type { Opening } from "../support/load.ts";
import { createMembers, MEMBER, memberName } from "../support/members.ts";
import { type Server, startBroker } from "../support/servers.ts";
import { type Contender, needsHistory, type Peer, type PeerSetting } from "./peer.ts";

/** Receiver of the messages: a different user for each connection. No receiver is online. */
const RECEIVER = { id: `receiver${CONNECTION_NUMBER}`, type: 1 } as const;

/** Wire format of the clients. */
export type Format = "native" | "jsonrpc";

interface JindouOptions {
  readonly format: Format;
  /** Server that runs elsewhere. Absent if the bench starts one for each workload. */
  readonly server: Server | undefined;
  /** Number of nodes on one Redis. 0 for one node with the embedded store. */
  readonly nodes: number;
}

export function jindou({ format, server, nodes }: JindouOptions): Peer {
  let redis: Promise<Redis> | undefined;
  let starts = 0;
  const start = async ({ workbench }: PeerSetting): Promise<readonly [Server, ...Server[]]> => {
    if (server !== undefined) return [server];
    const build = { kind: "broker", name: "jindou", directory: buildHere() } as const;
    if (nodes === 0) return [await startBroker(workbench, build)];
    redis ??= startRedis({ workbench });
    starts += 1;
    const cluster = { name: `overview${starts}`, count: nodes, redis: await redis };
    const [first, ...others] = (await startNodes({ workbench }, build, cluster)).servers;
    if (first === undefined) throw new Error("No node was started.");
    return [first, ...others];
  };
  const wireFormat = format === "native" ? "" : ", JSON-RPC";
  return {
    name: "jindou",
    title: `Jindou${nodes === 0 ? "" : `, ${nodes} nodes on Redis`}${wireFormat}`,
    lacks: [],
    keepsHistory: true,
    missing: () => undefined,

    async start(setting, work): Promise<Contender | undefined> {
      if (needsHistory(work) && format !== "native") return undefined;
      const { payload } = setting;
      const servers = await start(setting);
      const [started] = servers;
      const opening = openingOf(format, MEMBER);
      switch (work.kind) {
        case "fanout": {
          // The publisher is also a member. Its number follows those of the receivers.
          const group = { id: `group-${work.members}-${Date.now()}`, type: 2 } as const;
          await createMembers(started, group.id, work.members + 1);
          const fromUid = memberName(work.members);
          const push = sampleMessage({ channel: group, fromUid, clientMsgNo: "" });
          return {
            servers,
            opening,
            message: () =>
              work.via === "http"
                ? postOf(started, { channel: group, fromUid, payload })
                : frameOf(format, group, payload),
            replyStart: format === "native" ? push.subarray(0, 2) : jsonRpcStart("message"),
            publishOpening: opening,
          };
        }
        case "post": {
          const message = () => postOf(started, { channel: RECEIVER, fromUid: MEMBER, payload });
          return { servers, opening, message, replyStart: new Uint8Array() };
        }
        case "send": {
          await createMembers(started, `senders-${Date.now()}`, work.connections);
          const ack = sampleSendack(freshMessageNumber());
          return {
            servers,
            opening,
            message: () => frameOf(format, RECEIVER, payload),
            replyStart: format === "native" ? ack.subarray(0, 2) : jsonRpcStart(),
          };
        }
        case "connect": {
          await createMembers(started, `connect-${Date.now()}`, work.clients);
          const nothing = new Uint8Array();
          return { servers, opening, message: () => nothing, replyStart: nothing };
        }
        case "late": {
          const channel = { id: `late-${Date.now()}`, type: 2 } as const;
          await createMembers(started, channel.id, work.clients);
          await writeAnswer(started, channel, work.chunks);
          const nothing = new Uint8Array();
          return {
            servers,
            opening: { ...opening, replies: 2 }, // CONNACK and STREAM
            message: () => nothing,
            replyStart: nothing,
          };
        }
        case "resume": {
          const channel = { id: `resume-${Date.now()}`, type: 2 } as const;
          await createMembers(started, channel.id, work.clients);
          await sendMissed(started, channel, { count: work.missed, payload: setting.payload });
          const open = connectFrame(MEMBER, TOKEN, [{ channel, lastSeq: 0, lastId: 0 }]);
          const nothing = new Uint8Array();
          return {
            servers,
            opening: { upgrade: NATIVE_UPGRADE, open, replies: 2 }, // CONNACK and MESSAGES
            message: () => nothing,
            replyStart: nothing,
          };
        }
      }
    },
  };
}

/** Starts a stream and writes chunks to it. The stream stays active. */
async function writeAnswer(server: Server, channel: ChannelRef, chunks: number): Promise<void> {
  const backend = backendOf(server);
  const stream = { channel, fromUid: memberName(0), clientMsgNo: "answer" };
  const write = (type: string, data: string) =>
    backend.post("/event", eventBody(stream, { type, data }));
  await write(STREAM_START, '{"type":1,"content":""}');
  for (let at = 0; at < chunks; at++) await write(STREAM_CONTENT, CHUNK_TEXT);
  backend.close();
}

async function sendMissed(
  server: Server,
  channel: ChannelRef,
  { count, payload }: { readonly count: number; readonly payload: Uint8Array },
): Promise<void> {
  const backend = backendOf(server);
  for (let at = 0; at < count; at++)
    await backend.post(
      "/message/send",
      JSON.parse(
        sendBody({ channel, fromUid: memberName(0), clientMsgNo: `missed-${at}`, payload }),
      ) as object,
    );
  backend.close();
}

function postOf(
  { apiToken }: Server,
  send: { readonly channel: ChannelRef; readonly fromUid: string; readonly payload: Uint8Array },
): Uint8Array {
  const body = sendBody({ ...send, clientMsgNo: freshMessageNumber() });
  return httpRequest("/message/send", body, apiToken);
}

function openingOf(format: Format, uid: string): Opening {
  if (format === "native") return { upgrade: NATIVE_UPGRADE, open: connectFrame(uid, TOKEN) };
  const params = { protocol: 1, uid, token: TOKEN, deviceFlag: 0 };
  return { upgrade: upgradeRequest("/"), open: jsonRpcRequest("connect", params) };
}

function frameOf(format: Format, channel: ChannelRef, payload: Uint8Array): Uint8Array {
  const clientMsgNo = freshMessageNumber();
  if (format === "native") return sendFrame(channel, clientMsgNo, payload);
  return jsonRpcRequest("send", {
    ...{ channelType: channel.type, channelId: channel.id, clientMsgNo },
    payload: JSON.parse(Buffer.from(payload).toString()) as object,
  });
}
