// Lets the native test client speak the extended JSON-RPC: encodes its operations as text, and
// decodes the server's text to the reply or push that the native protocol would have sent. Written
// from docs/protocol/jsonrpc.md. Owns the kind of each request that has no reply yet.

import {
  type ChannelEvent,
  type ChannelRef,
  type Conversation,
  channelKey,
  GROUP_CHANNEL,
  type Message,
  PERSON_CHANNEL,
  type Presence,
  type StreamSnapshot,
} from "../../src/broker/model.ts";
import type { ServerFrame } from "../../src/protocol/native/client-decode.ts";
import { errorCodeOf } from "../../src/protocol/native/errors.ts";
import type { Operation, OperationKind, Push, Reply } from "../../src/protocol/protocol.ts";
import type { Json } from "./jsonrpc-client.ts";
import type { Wire } from "./wire.ts";

/** Returns the JSON-RPC wire format of one connection of the user `uid`. */
export function jsonRpcWire(uid: string): Wire {
  const kindsByRef = new Map<number, OperationKind>();
  return {
    subprotocol: "jindou.jsonrpc.v1",

    encode(operation) {
      const { kind, ref } = operation;
      const hasReply = kind !== "recvack" && kind !== "disconnect" && ref !== 0;
      if (hasReply) kindsByRef.set(ref, kind);
      return JSON.stringify({
        ...{ jsonrpc: "2.0", method: kind, params: paramsOf(operation) },
        ...(hasReply && { id: String(ref) }),
      });
    },

    decode(data, isBinary) {
      if (isBinary) throw new Error("the server sent a binary message");
      const message: Json = JSON.parse(String(data));
      if (message.method !== undefined) return pushOf(uid, message.method, message.params);
      const ref = Number(message.id ?? 0);
      if (message.error !== undefined) return errorOf(ref, message.error);
      const kind = kindsByRef.get(ref);
      kindsByRef.delete(ref);
      if (kind === undefined) throw new Error(`a reply to ${message.id}, which is not a request`);
      return replyOf(uid, kind, { ...message.result, ref });
    },
  };
}

function paramsOf(operation: Operation): object {
  switch (operation.kind) {
    case "connect": {
      const { version, uid, token, flag, deviceId, level, resume, sessionName } = operation;
      return {
        ...{ protocol: version, uid, token, session: sessionName },
        ...{ deviceFlag: flag, deviceId, deviceLevel: level },
        resume: resume.map(({ channel, lastSeq, lastId }) => ({
          ...channelFields(channel),
          ...{ lastSeq, lastId },
        })),
      };
    }
    case "send": {
      const { channel, payload, kind: _, ref: __, ...fields } = operation;
      const bytes = Buffer.from(payload).toString("base64");
      return { ...channelFields(channel), ...fields, payload: bytes };
    }
    case "conversation":
      return {
        ...channelFields(operation.channel),
        ...operation.change,
        change: operation.change?.kind,
      };
    default: {
      const { kind: _, ref: __, ...fields } = operation;
      if (!("channel" in fields)) return fields;
      const { channel, ...otherFields } = fields;
      return { ...(channel && channelFields(channel)), ...otherFields };
    }
  }
}

function channelFields({ id, type }: ChannelRef) {
  return { channelId: id, channelType: type };
}

function errorOf(ref: number, { message, data }: Json): ServerFrame {
  const code = errorCodeOf(data.name, data.retry);
  return { kind: "error", ref, code, message, retryAfterMs: data.retryAfterMs };
}

function replyOf(uid: string, kind: OperationKind, result: Json): Reply {
  const { ref } = result;
  switch (kind) {
    case "connect":
    case "refresh":
      return {
        ...result,
        kind: "connack",
        version: result.protocol,
        resume: result.resume.map((channel: Json) => ({
          channel: channelOf(channel),
          ...{ status: channel.status, headSeq: channel.headSeq },
        })),
      };
    case "send":
      return { ...result, kind: "sendack" };
    case "ping":
      return { ...result, kind: "pong" };
    case "history":
      return {
        ...{ kind, ref, channel: channelOf(result) },
        ...{ headSeq: result.headSeq, more: result.more },
        messages: result.messages.map((message: Json) => messageOf(uid, message)),
      };
    case "presence":
    case "watch":
      return { kind, ref, presence: presenceOf(result) };
    case "stream": {
      const snapshot = snapshotOf(uid, result);
      return { kind, ref, channel: channelOf(result), snapshot };
    }
    case "cancel":
      return { kind, ref, state: result.state };
    case "conversations":
      return {
        ...{ kind, ref, cursor: result.cursor },
        conversations: result.conversations.map((fields: Json) => conversationOf(uid, fields)),
      };
    case "conversation":
      return { kind, ref, conversation: conversationOf(uid, result) };
    case "members":
      return { kind, ref, cursor: result.cursor, uids: result.uids };
    case "commandack":
      return { kind, ref, count: result.count };
    case "emit":
    case "state":
      return { kind, ref };
    case "recvack":
    case "disconnect":
      throw new Error(`a reply to ${kind}, which has none`);
  }
}

function pushOf(uid: string, method: string, params: Json): Push {
  switch (method) {
    case "message":
      return {
        ...{ kind: "message", channel: channelOf(params) },
        message: messageOf(uid, params),
      };
    case "messages":
      return {
        ...{ kind: "messages", channel: channelOf(params) },
        ...{ afterSeq: params.afterSeq, throughSeq: params.throughSeq },
        messages: params.messages.map((message: Json) => messageOf(uid, message)),
      };
    case "event":
      return {
        ...{ kind: "event", channel: channelOf(params) },
        event: eventOf(uid, params),
      };
    case "stream":
      return {
        ...{ kind: "stream", channel: channelOf(params) },
        snapshot: snapshotOf(uid, params),
      };
    case "command":
      return {
        ...{ kind: "command", channel: channelOf(params) },
        inboxSeq: params.inboxSeq,
        message: messageOf(uid, params),
      };
    case "conversation":
      return {
        ...{ kind: "conversation", change: params.change },
        conversation: conversationOf(uid, params),
      };
    case "presence":
      return { kind: "presence", presence: presenceOf(params) };
    case "disconnect":
      return { kind: "disconnect", reason: params.name };
    default:
      throw new Error(`an unknown notification ${method}`);
  }
}

function channelOf({ channelId: id, channelType: type }: Json): ChannelRef {
  return { id, type };
}

/**
 * Returns the fields that messages, events and streams have in common. In a personal channel, each
 * user sees the other user's uid as the channel id. For an item that another user sent to `uid`,
 * the returned `channel` is therefore `uid`, as its sender sees it.
 */
function originOf(uid: string, fields: Json) {
  const { fromUid, clientMsgNo } = fields;
  const channel = channelOf(fields);
  const isAsSent = channel.type === GROUP_CHANNEL || fromUid === uid;
  return {
    key: channelKey(channel, uid),
    channel: isAsSent ? channel : ({ id: uid, type: PERSON_CHANNEL } as const),
    ...{ fromUid, clientMsgNo },
  };
}

function messageOf(uid: string, fields: Json): Message {
  const { messageId, messageSeq, timestampMs, header, expireS } = fields;
  const origin = originOf(uid, fields);
  const payload = Uint8Array.from(Buffer.from(fields.payload, "base64"));
  const { stream } = fields;
  return {
    ...{ messageId, messageSeq, ...origin, timestampMs, header, expireS },
    ...{ streamNo: fields.streamNo, tagKey: fields.tagKey, payload },
    stream: stream && {
      ...{ ...origin, messageId, messageSeq, ...stream },
      text: JSON.parse(new TextDecoder().decode(payload)).content,
      endData: stream.endData,
    },
  };
}

function snapshotOf(uid: string, fields: Json): StreamSnapshot {
  const { messageId, messageSeq, text, stream } = fields;
  return {
    ...{ ...originOf(uid, fields), messageId, messageSeq, text, ...stream },
    endData: stream.endData,
  };
}

function eventOf(uid: string, fields: Json): ChannelEvent {
  const { eventId, type, data, timestampMs, stream } = fields;
  return {
    ...originOf(uid, fields),
    ...{ eventId, type, data, timestampMs, stream },
  };
}

function conversationOf(uid: string, fields: Json): Conversation {
  const { headSeq, readSeq, unread, deletedSeq, changedAtMs, last, large } = fields;
  return {
    channel: channelOf(fields),
    ...{ headSeq, readSeq, unread, deletedSeq, changedAtMs },
    last: last && messageOf(uid, last),
    ...(large && { large }),
  };
}

function presenceOf({ presence }: Json): readonly Presence[] {
  return presence.map(({ uid, online, deviceFlag: flag }: Json) => ({
    ...{ uid, online, flag },
  }));
}
