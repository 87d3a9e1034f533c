// Converts replies and pushes to JSON text in the extended form, and builds the JSON-RPC envelopes
// for the extended and the plain form. The fields are described in docs/protocol/jsonrpc.md.

import { Buffer } from "node:buffer";
import { CLOSE_REASONS } from "../../broker/errors.ts";
import {
  type ChannelEvent,
  type ChannelRef,
  type Conversation,
  type Message,
  type Presence,
  type StreamPlace,
  type StreamSnapshot,
  streamLogPath,
  textPayload,
} from "../../broker/model.ts";
import type { Push, Reply } from "../protocol.ts";
import { errorObject } from "./errors.ts";

/** Returns the response with a result. `id` is the JSON text of the request's id. */
export function resultResponse(id: string, result: object): string {
  return `{"jsonrpc":"2.0","id":${id},"result":${JSON.stringify(result)}}`;
}

/**
 * Returns a notification. It has no `id`, because clients would otherwise treat it as a response.
 */
export function notification(method: string, params: object): string {
  return `{"jsonrpc":"2.0","method":"${method}","params":${JSON.stringify(params)}}`;
}

/**
 * Returns an error response. `id` is the JSON text of the request's id, or `undefined` for a
 * response without an id. `number` is the `code` of the error.
 */
export function errorResponse(
  id: string | undefined,
  reply: Extract<Reply, { readonly kind: "error" }>,
  number: number,
): string {
  const idField = id === undefined ? "" : `"id":${id},`;
  return `{"jsonrpc":"2.0",${idField}"error":${JSON.stringify(errorObject(reply, number))}}`;
}

export function base64({ buffer, byteOffset, length }: Uint8Array): string {
  return Buffer.from(buffer, byteOffset, length).toString("base64");
}

export function resultOf(reply: Exclude<Reply, { readonly kind: "error" }>): object {
  switch (reply.kind) {
    case "connack":
      return {
        protocol: reply.version,
        sessionId: reply.sessionId,
        nodeId: reply.nodeId,
        serverTimeMs: reply.serverTimeMs,
        limits: reply.limits,
        resume: reply.resume.map(({ channel, status, headSeq }) => ({
          ...channelFields(channel),
          status,
          headSeq,
        })),
        newestId: reply.newestId,
        expiresInS: reply.expiresInS,
      };
    case "sendack": {
      const { messageId, messageSeq, clientMsgNo, repeated } = reply;
      const fields = { messageId, messageSeq, clientMsgNo };
      return repeated ? { ...fields, repeated } : fields;
    }
    case "history": {
      const { channel, headSeq, more, messages } = reply;
      return {
        ...channelFields(channel),
        headSeq,
        more,
        messages: messages.map((message) => messageFields(channel, message)),
      };
    }
    case "presence":
    case "watch":
      return { presence: presenceRecords(reply.presence) };
    case "stream":
      return streamFields(reply.channel, reply.snapshot);
    case "cancel":
      return { state: reply.state };
    case "conversations":
      return {
        cursor: reply.cursor,
        conversations: reply.conversations.map(conversationFields),
      };
    case "conversation":
      return conversationFields(reply.conversation);
    case "members":
      return { cursor: reply.cursor, uids: reply.uids };
    case "commandack":
      return { count: reply.count };
    case "emit":
    case "state":
      return {};
    case "pong":
      return { serverTimeMs: reply.serverTimeMs };
  }
}

export function encodeExtended(push: Push): string {
  return notification(push.kind, paramsOf(push));
}

function paramsOf(push: Push): object {
  switch (push.kind) {
    case "message":
      return messageFields(push.channel, push.message);
    case "messages": {
      const { channel, afterSeq, throughSeq, messages } = push;
      return {
        ...channelFields(channel),
        afterSeq,
        throughSeq,
        messages: messages.map((message) => messageFields(channel, message)),
      };
    }
    case "event":
      return eventFields(push.channel, push.event);
    case "stream":
      return streamFields(push.channel, push.snapshot);
    case "command": {
      const { inboxSeq, channel, message } = push;
      return { inboxSeq, ...messageFields(channel, message) };
    }
    case "conversation":
      return {
        change: push.change,
        ...conversationFields(push.conversation),
      };
    case "presence":
      return { presence: presenceRecords(push.presence) };
    case "disconnect": {
      const { code, message } = CLOSE_REASONS[push.reason];
      return { code, name: push.reason, message };
    }
  }
}

function channelFields({ type, id }: ChannelRef) {
  return { channelType: type, channelId: id };
}

function messageFields(channel: ChannelRef, message: Message) {
  const { noPersist, redDot } = message.header;
  const { stream } = message;
  return {
    channelType: channel.type,
    channelId: channel.id,
    messageSeq: message.messageSeq,
    messageId: message.messageId,
    fromUid: message.fromUid,
    clientMsgNo: message.clientMsgNo,
    timestampMs: message.timestampMs,
    header: { noPersist, redDot },
    expireS: message.expireS,
    payload: base64(textPayload(message)),
    streamNo: message.streamNo,
    tagKey: message.tagKey,
    stream: stream && streamRecord(stream),
  };
}

function eventFields(channel: ChannelRef, event: ChannelEvent) {
  return {
    channelType: channel.type,
    channelId: channel.id,
    fromUid: event.fromUid,
    clientMsgNo: event.clientMsgNo,
    eventId: event.eventId,
    type: event.type,
    data: event.data,
    timestampMs: event.timestampMs,
    stream: event.stream && placeFields(event.stream),
  };
}

function placeFields(place: StreamPlace): object {
  return place.truncated ? { ...place, truncated: 1 } : place;
}

function streamFields(channel: ChannelRef, snapshot: StreamSnapshot) {
  const { messageSeq, messageId, fromUid, clientMsgNo, text } = snapshot;
  return {
    ...channelFields(channel),
    ...{ messageSeq, messageId, fromUid, clientMsgNo, text },
    stream: streamRecord(snapshot),
  };
}

function streamRecord(snapshot: StreamSnapshot) {
  const { state, nextIndex, startData, endData, notes, truncated } = snapshot;
  return {
    ...{ state, nextIndex, startData, endData, notes },
    ...(truncated && { truncated: 1 }),
    log: streamLogPath(snapshot.key, snapshot.clientMsgNo),
  };
}

function conversationFields(conversation: Conversation) {
  const { channel, headSeq, readSeq, unread, deletedSeq } = conversation;
  const { changedAtMs, last, large } = conversation;
  return {
    ...channelFields(channel),
    ...{ headSeq, readSeq, unread, deletedSeq, changedAtMs },
    last: last && messageFields(channel, last),
    large,
  };
}

function presenceRecords(presence: readonly Presence[]) {
  return presence.map(({ uid, online, flag }) => ({
    uid,
    online,
    deviceFlag: flag,
  }));
}
