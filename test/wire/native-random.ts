// Random values of every kind in the native protocol, as one user's client sees them. The generator
// `r` that each function receives determines the values completely.

import { CLOSE_REASONS, ERRORS } from "../../src/broker/errors.ts";
import {
  type ChannelEvent,
  type ChannelRef,
  type Conversation,
  channelKey,
  type Message,
  type Presence,
  type StreamSnapshot,
  streamPayload,
} from "../../src/broker/model.ts";
import { STREAM_STATES } from "../../src/protocol/native/ops.ts";
import type { ConversationChange, Operation, Push, Reply } from "../../src/protocol/protocol.ts";
import type { Random } from "../support/random.ts";
import { LIMITS } from "./native-codec.ts";

/** Uid of the user whose client reads the replies and pushes. */
export const RANDOM_READER_UID = "reader";

export function randomOperation(r: Random): Operation {
  const ref = r.uint(32);
  const channel = randomChannel(r);
  const variants: readonly (() => Operation)[] = [
    () => ({
      kind: "connect",
      ref,
      version: 1,
      uid: r.id(),
      token: r.text(200),
      flag: r.pick([0, 1, 2]),
      deviceId: r.maybe(() => r.id()) ?? "",
      level: r.pick([undefined, 0, 1]),
      resume: r.list(LIMITS.maxResumePoints, () => ({
        channel: randomChannel(r),
        lastSeq: r.uint(53),
        lastId: r.uint(53),
      })),
      sessionName: r.maybe(() => `n${r.text(200)}`) ?? "",
    }),
    () => ({
      kind: "send",
      ref,
      channel,
      clientMsgNo: r.text(LIMITS.maxIdLength),
      header: { ...randomHeader(r), syncOnce: r.flip() },
      expireS: r.uint(32),
      streamNo: r.maybe(() => `s${r.text(LIMITS.maxIdLength - 1)}`),
      tagKey: r.maybe(() => `t${r.text(LIMITS.maxIdLength - 1)}`),
      payload: r.bytes(r.below(LIMITS.maxPayloadBytes)),
    }),
    () => ({
      kind: "recvack",
      ref,
      channel,
      messageSeq: r.uint(53),
      messageId: r.uint(53),
    }),
    () => ({
      kind: "history",
      ref,
      channel,
      fromSeq: r.uint(53),
      toSeq: r.uint(53),
      limit: 1 + r.uint(31),
      reverse: r.flip(),
    }),
    () => ({
      kind: "presence",
      ref,
      uids: r.list(LIMITS.maxPresenceUids, () => r.id()),
    }),
    () => ({ kind: "stream", ref, channel, clientMsgNo: randomName(r) }),
    () => ({ kind: "cancel", ref, channel, clientMsgNo: randomName(r) }),
    () => ({
      kind: "conversations",
      ref,
      limit: 1 + r.below(500),
      cursor: r.maybe(() => randomName(r)),
    }),
    () => ({
      kind: "conversation",
      ref,
      channel,
      change: r.maybe(() => randomChange(r)),
    }),
    () => ({
      kind: "conversations",
      ref,
      limit: 1 + r.below(500),
      cursor: r.maybe(() => randomName(r)),
      sinceMs: r.uint(53),
    }),
    () => ({
      kind: "members",
      ref,
      channel,
      limit: 1 + r.below(1000),
      cursor: r.maybe(() => randomName(r)),
    }),
    () => ({
      kind: "commandack",
      ref,
      inboxSeqs: r.list(LIMITS.maxCommandAcks, () => r.uint(53)),
    }),
    () => ({
      kind: "watch",
      ref,
      uids: r.list(LIMITS.maxWatchedUids, () => r.id()),
    }),
    () => ({ kind: "emit", ref, channel, type: r.text(64), data: r.text(1000) }),
    () => ({ kind: "state", ref, foreground: r.flip() }),
    () => ({ kind: "refresh", ref, token: r.text(1000) }),
    () => ({ kind: "ping", ref }),
    () => ({ kind: "disconnect", ref }),
  ];
  return r.pick(variants)();
}

export function randomReply(r: Random): Reply {
  const ref = r.uint(32);
  const variants: readonly (() => Reply)[] = [
    () => ({
      kind: "connack",
      ref,
      version: r.uint(53),
      sessionId: r.text(40),
      nodeId: r.text(40),
      serverTimeMs: r.uint(53),
      limits: {
        maxFrameBytes: r.uint(53),
        maxPayloadBytes: r.uint(53),
        idleTimeoutS: r.uint(53),
        maxFramesPerSecond: r.uint(53),
      },
      resume: r.list(300, () => ({
        channel: randomChannel(r),
        status: r.pick(["ok", "denied"]),
        headSeq: r.uint(53),
      })),
      newestId: r.uint(53),
      expiresInS: r.maybe(() => r.uint(32)),
    }),
    () => ({
      kind: "sendack",
      ref,
      messageId: r.uint(53),
      messageSeq: r.uint(53),
      clientMsgNo: r.text(300),
      repeated: r.flip(),
    }),
    () => ({
      kind: "history",
      ref,
      headSeq: r.uint(53),
      more: r.flip(),
      ...randomRange(r),
    }),
    () => ({ kind: "presence", ref, presence: randomPresence(r) }),
    () => ({ kind: "watch", ref, presence: randomPresence(r) }),
    () => ({ kind: "stream", ref, ...randomStream(r) }),
    () => ({ kind: "cancel", ref, state: r.pick(STREAM_STATES) }),
    () => ({
      kind: "conversations",
      ref,
      cursor: r.maybe(() => randomName(r)),
      conversations: r.list(20, () => randomConversation(r)),
    }),
    () => ({ kind: "conversation", ref, conversation: randomConversation(r) }),
    () => ({
      kind: "members",
      ref,
      cursor: r.maybe(() => randomName(r)),
      uids: r.list(20, () => r.id()),
    }),
    () => ({ kind: "commandack", ref, count: r.uint(53) }),
    () => ({ kind: "emit", ref }),
    () => ({ kind: "state", ref }),
    () => ({ kind: "pong", ref, serverTimeMs: r.uint(53) }),
    () => {
      const code = r.pick(keysOf(ERRORS));
      const retryAfterMs = ERRORS[code].retry ? r.uint(53) : 0;
      return { kind: "error", ref, code, message: `m${r.text(300)}`, retryAfterMs };
    },
  ];
  return r.pick(variants)();
}

export function randomPush(r: Random): Push {
  const variants: readonly (() => Push)[] = [
    () => {
      const channel = randomChannel(r);
      return { kind: "message", channel, message: randomMessage(r, channel) };
    },
    () => ({
      kind: "messages",
      afterSeq: r.uint(53),
      throughSeq: r.uint(53),
      ...randomRange(r),
    }),
    () => ({ kind: "event", ...randomEvent(r) }),
    () => ({ kind: "stream", ...randomStream(r) }),
    () => {
      const channel = randomChannel(r);
      const message = randomMessage(r, channel);
      return { kind: "command", channel, inboxSeq: r.uint(53), message };
    },
    () => ({
      kind: "conversation",
      change: r.pick(["read", "unread", "delete"]),
      conversation: randomConversation(r),
    }),
    () => ({ kind: "presence", presence: randomPresence(r) }),
    () => ({ kind: "disconnect", reason: r.pick(keysOf(CLOSE_REASONS)) }),
  ];
  return r.pick(variants)();
}

function randomRange(r: Random) {
  const channel = randomChannel(r);
  return { channel, messages: r.list(20, () => randomMessage(r, channel)) };
}

function randomMessage(r: Random, channel: ChannelRef): Message {
  const message: Message = {
    ...randomOrigin(r, channel),
    messageId: r.uint(53),
    messageSeq: r.uint(53),
    clientMsgNo: r.text(200),
    timestampMs: r.uint(53),
    header: randomHeader(r),
    expireS: r.uint(53),
    streamNo: r.maybe(() => r.text(100)),
    tagKey: r.maybe(() => r.text(100)),
    payload: r.bytes(r.below(700)),
    stream: undefined,
  };
  if (r.flip()) return message;
  const { key, channel: sentTo, fromUid, clientMsgNo } = message;
  const stream = {
    ...randomSnapshot(r, { key, channel: sentTo, fromUid }),
    clientMsgNo,
    messageId: message.messageId,
    messageSeq: message.messageSeq,
  };
  return { ...message, payload: streamPayload(stream.text), stream };
}

type Origin = Pick<Message, "key" | "channel" | "fromUid">;

/**
 * Returns a random sender in a channel: another user, or the reader's other device. `channel` is
 * the channel as the reader names it.
 */
function randomOrigin(r: Random, channel: ChannelRef): Origin {
  const isOwn = r.flip();
  const hasSameName = isOwn || channel.type === 2;
  return {
    key: channelKey(channel, RANDOM_READER_UID),
    channel: hasSameName ? channel : { type: 1, id: RANDOM_READER_UID },
    fromUid: isOwn ? RANDOM_READER_UID : channel.type === 1 ? channel.id : r.id(),
  };
}

function randomStream(r: Random) {
  const channel = randomChannel(r);
  return { channel, snapshot: randomSnapshot(r, randomOrigin(r, channel)) };
}

function randomSnapshot(r: Random, origin: Origin): StreamSnapshot {
  return {
    ...origin,
    clientMsgNo: r.text(128),
    messageId: r.uint(53),
    messageSeq: r.uint(53),
    state: r.pick(STREAM_STATES),
    text: r.text(r.pick([10, 1000, 10_000])),
    nextIndex: r.uint(53),
    startData: r.text(300),
    endData: r.maybe(() => r.text(300)),
    notes: r.list(5, () => ({
      index: r.uint(53),
      textOffset: r.uint(53),
      eventId: r.text(128),
      type: r.text(40),
      data: r.text(300),
      timestampMs: r.uint(53),
    })),
    ...(r.flip() && { truncated: true }),
  };
}

function randomEvent(r: Random) {
  const channel = randomChannel(r);
  const event: ChannelEvent = {
    ...randomOrigin(r, channel),
    clientMsgNo: r.text(128),
    eventId: r.text(128),
    type: r.text(40),
    data: r.text(r.pick([20, 600])),
    timestampMs: r.uint(53),
    stream: r.maybe(() => ({
      messageSeq: r.uint(53),
      index: r.uint(53),
      nextIndex: r.uint(53),
      textOffset: r.uint(53),
      state: r.pick(STREAM_STATES),
      ...(r.flip() && { truncated: true }),
    })),
  };
  return { channel, event };
}

function randomConversation(r: Random): Conversation {
  const channel = randomChannel(r);
  return {
    channel,
    headSeq: r.uint(53),
    readSeq: r.uint(53),
    unread: r.uint(53),
    deletedSeq: r.uint(53),
    changedAtMs: r.uint(53),
    last: r.maybe(() => randomMessage(r, channel)),
  };
}

function randomChange(r: Random): ConversationChange {
  return r.pick([
    { kind: "read", seq: r.uint(53) },
    { kind: "unread", unread: r.uint(32) },
    { kind: "delete" },
    { kind: "delete", seq: r.uint(53) },
  ]);
}

function randomPresence(r: Random): readonly Presence[] {
  return r.list(100, () => ({
    uid: r.id(),
    online: r.flip(),
    flag: r.pick([0, 1, 2]),
  }));
}

function randomName(r: Random): string {
  return `n${r.text(LIMITS.maxIdLength - 1)}`;
}

function randomHeader(r: Random) {
  return { noPersist: r.flip(), redDot: r.flip() };
}

function randomChannel(r: Random): ChannelRef {
  return { type: r.pick([1, 2]), id: r.id() };
}

function keysOf<K extends string>(table: Readonly<Record<K, unknown>>): K[] {
  return Object.keys(table) as K[];
}
