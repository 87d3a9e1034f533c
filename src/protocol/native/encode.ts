// Reply and Push → bytes, for the server. State: the writer's slab, shared by all connections. The MESSAGE push and the SENDACK are on
// the message path: one pass, no array in between. Frames are immutable and may be kept. Field orders: docs/protocol/native.md.

import { CLOSE_REASONS, ERRORS } from "../../broker/errors.ts";
import type { ChannelRef, Message } from "../../broker/model.ts";
import type { Push, Reply } from "../protocol.ts";
import { WIRE_CODES, WIRE_REASONS } from "./errors.ts";
import { FLAG_BITS, PUSH_OPS, REPLY_OPS, RESUME_STATUS } from "./ops.ts";
import { FrameWriter, textBytes } from "./writer.ts";

type ReplyOf<K extends Reply["kind"]> = Extract<Reply, { kind: K }>;
type PushOf<K extends Push["kind"]> = Extract<Push, { kind: K }>;

/** Bytes that cover the numbers and headers of any frame or nested entry. */
const FIXED_BYTES = 80;
const MESSAGE_FIELDS = 12;

export interface Encoder {
  reply(reply: Reply): Uint8Array;
  push(push: Push): Uint8Array;
}

export function createEncoder(): Encoder {
  const writer = new FrameWriter();
  return {
    reply(reply) {
      writeReply(writer, reply);
      return writer.end();
    },
    push(push) {
      writePush(writer, push);
      return writer.end();
    },
  };
}

function writeReply(writer: FrameWriter, reply: Reply): void {
  switch (reply.kind) {
    case "sendack":
      return writeSendack(writer, reply);
    case "pong":
      begin(writer, { op: REPLY_OPS.pong, ref: reply.ref, fields: 1 });
      return writer.uint(reply.serverTimeMs);
    case "history":
      return writeHistory(writer, reply);
    case "presence":
      return writePresence(writer, reply);
    case "connack":
      return writeConnack(writer, reply);
    case "error":
      return writeError(writer, reply);
  }
}

function writePush(writer: FrameWriter, push: Push): void {
  switch (push.kind) {
    case "message":
      begin(
        writer,
        { op: PUSH_OPS.message, ref: 0, fields: MESSAGE_FIELDS },
        messageBytes(push.channel, push.message),
      );
      return writeMessage(writer, push.channel, push.message);
    case "messages":
      return writeMessages(writer, push);
    case "disconnect":
      return writeDisconnect(writer, push);
  }
}

interface Head {
  readonly op: number;
  readonly ref: number;
  /** Fields that follow op and ref. */
  readonly fields: number;
}

/** `bytes`: the most that strings, payloads and lists take. */
function begin(writer: FrameWriter, head: Head, bytes = 0): void {
  writer.begin(FIXED_BYTES + bytes);
  writer.array(head.fields + 2);
  writer.uint(head.op);
  writer.uint(head.ref);
}

function writeSendack(writer: FrameWriter, reply: ReplyOf<"sendack">): void {
  const { ref, clientMsgNo } = reply;
  begin(
    writer,
    { op: REPLY_OPS.sendack, ref, fields: 3 },
    textBytes(clientMsgNo),
  );
  writer.uint(reply.messageId);
  writer.uint(reply.messageSeq);
  writer.text(clientMsgNo);
}

function writeConnack(writer: FrameWriter, reply: ReplyOf<"connack">): void {
  const { limits, resume } = reply;
  let bytes = textBytes(reply.sessionId) + textBytes(reply.nodeId);
  for (const { channel } of resume)
    bytes += FIXED_BYTES + textBytes(channel.id);
  begin(writer, { op: REPLY_OPS.connack, ref: reply.ref, fields: 6 }, bytes);
  writer.uint(reply.version);
  writer.text(reply.sessionId);
  writer.text(reply.nodeId);
  writer.uint(reply.serverTimeMs);
  writer.array(4);
  writer.uint(limits.maxFrameBytes);
  writer.uint(limits.maxPayloadBytes);
  writer.uint(limits.idleTimeoutS);
  writer.uint(limits.maxFramesPerSecond);
  writer.array(resume.length);
  for (const { channel, status, headSeq } of resume) {
    writer.array(4);
    writer.uint(channel.type);
    writer.text(channel.id);
    writer.uint(RESUME_STATUS[status]);
    writer.uint(headSeq);
  }
}

function writeHistory(writer: FrameWriter, reply: ReplyOf<"history">): void {
  const { ref, channel, messages } = reply;
  begin(
    writer,
    { op: REPLY_OPS.history, ref, fields: 5 },
    textBytes(channel.id) + listBytes(channel, messages),
  );
  writer.uint(channel.type);
  writer.text(channel.id);
  writer.uint(reply.headSeq);
  writer.bool(reply.more);
  writeMessageList(writer, channel, messages);
}

function writePresence(writer: FrameWriter, reply: ReplyOf<"presence">): void {
  const { ref, presence } = reply;
  let bytes = 0;
  for (const { uid } of presence) bytes += FIXED_BYTES + textBytes(uid);
  begin(writer, { op: REPLY_OPS.presence, ref, fields: 1 }, bytes);
  writer.array(presence.length);
  for (const { uid, online, flag } of presence) {
    writer.array(3);
    writer.text(uid);
    writer.bool(online);
    writer.uint(flag);
  }
}

function writeError(writer: FrameWriter, reply: ReplyOf<"error">): void {
  const { ref } = reply;
  const code = WIRE_CODES[reply.code];
  const message = reply.message || ERRORS[reply.code].message;
  begin(
    writer,
    { op: REPLY_OPS.error, ref, fields: 4 },
    textBytes(code) + textBytes(message),
  );
  writer.text(code);
  writer.text(message);
  writer.bool(ERRORS[reply.code].retry);
  writer.uint(reply.retryAfterMs);
}

function writeMessages(writer: FrameWriter, push: PushOf<"messages">): void {
  const { channel, messages } = push;
  begin(
    writer,
    { op: PUSH_OPS.messages, ref: 0, fields: 5 },
    textBytes(channel.id) + listBytes(channel, messages),
  );
  writer.uint(channel.type);
  writer.text(channel.id);
  writer.uint(push.afterSeq);
  writer.uint(push.throughSeq);
  writeMessageList(writer, channel, messages);
}

function writeDisconnect(
  writer: FrameWriter,
  push: PushOf<"disconnect">,
): void {
  const { code, message } = CLOSE_REASONS[push.reason];
  const name = WIRE_REASONS[push.reason];
  begin(
    writer,
    { op: PUSH_OPS.disconnect, ref: 0, fields: 3 },
    textBytes(name) + textBytes(message),
  );
  writer.uint(code);
  writer.text(name);
  writer.text(message);
}

function listBytes(channel: ChannelRef, messages: readonly Message[]): number {
  let bytes = 0;
  for (const message of messages) bytes += messageBytes(channel, message);
  return bytes;
}

function writeMessageList(
  writer: FrameWriter,
  channel: ChannelRef,
  messages: readonly Message[],
): void {
  writer.array(messages.length);
  for (const message of messages) {
    writer.array(MESSAGE_FIELDS);
    writeMessage(writer, channel, message);
  }
}

function messageBytes(channel: ChannelRef, message: Message): number {
  const { fromUid, clientMsgNo, streamNo, tagKey, payload } = message;
  return (
    FIXED_BYTES +
    textBytes(channel.id) +
    textBytes(fromUid) +
    textBytes(clientMsgNo) +
    (streamNo === undefined ? 0 : textBytes(streamNo)) +
    (tagKey === undefined ? 0 : textBytes(tagKey)) +
    payload.length
  );
}

/** The fields of MESSAGE, also nested in HISTORY and MESSAGES. `channel`: as the receiver names it. */
function writeMessage(
  writer: FrameWriter,
  channel: ChannelRef,
  message: Message,
): void {
  const { noPersist, redDot } = message.header;
  writer.uint(channel.type);
  writer.text(channel.id);
  writer.uint(message.messageSeq);
  writer.uint(message.messageId);
  writer.text(message.fromUid);
  writer.text(message.clientMsgNo);
  writer.uint(message.timestampMs);
  writer.uint(
    (noPersist ? FLAG_BITS.noPersist : 0) | (redDot ? FLAG_BITS.redDot : 0),
  );
  writer.uint(message.expireS);
  writer.bin(message.payload);
  writer.optionalText(message.streamNo);
  writer.optionalText(message.tagKey);
}
