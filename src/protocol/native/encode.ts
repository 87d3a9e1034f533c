// Encodes replies and pushes, on the server. Owns a writer whose slab all connections share. Frames
// are immutable and may be kept. docs/protocol/native.md describes the order of the fields.

import { CLOSE_REASONS, ERRORS, mayRetry } from "../../broker/errors.ts";
import type { Presence } from "../../broker/model.ts";
import type { Push, Reply } from "../protocol.ts";
import {
  writeCommand,
  writeConversationPush,
  writeConversationReply,
  writeConversations,
  writeHistory,
  writeMessagePush,
  writeMessages,
  writeSendack,
} from "./encode-message.ts";
import { stateNumber, writeEvent, writeStream } from "./encode-stream.ts";
import { WIRE_REASONS, wireCodeOf } from "./errors.ts";
import { PUSH_OPS, REPLY_OPS, RESUME_STATUS } from "./ops.ts";
import { begin, FIXED_BYTES, FrameWriter, type Head, textBytes } from "./writer.ts";

interface Encoder {
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
  const { kind, ref } = reply;
  const op = REPLY_OPS[kind];
  switch (kind) {
    case "sendack":
      return writeSendack(writer, reply);
    case "pong":
      return writeNumber(writer, { op, ref }, reply.serverTimeMs);
    case "history":
      return writeHistory(writer, reply);
    case "presence":
    case "watch":
      return writePresence(writer, { op, ref }, reply.presence);
    case "stream":
      return writeStream(writer, { op, ref }, reply);
    case "cancel":
      return writeNumber(writer, { op, ref }, stateNumber(reply.state));
    case "conversations":
      return writeConversations(writer, reply);
    case "conversation":
      return writeConversationReply(writer, reply);
    case "members":
      return writeMembers(writer, reply);
    case "commandack":
      return writeNumber(writer, { op, ref }, reply.count);
    case "emit":
    case "state":
      return begin(writer, { op, ref, fields: 0 });
    case "connack":
      return writeConnack(writer, reply);
    case "error":
      return writeError(writer, reply);
  }
}

function writePush(writer: FrameWriter, push: Push): void {
  switch (push.kind) {
    case "message":
      return writeMessagePush(writer, push);
    case "event":
      return writeEvent(writer, push.channel, push.event);
    case "messages":
      return writeMessages(writer, push);
    case "stream":
      return writeStream(writer, { op: PUSH_OPS.stream, ref: 0 }, push);
    case "command":
      return writeCommand(writer, push);
    case "conversation":
      return writeConversationPush(writer, push);
    case "presence":
      return writePresence(writer, { op: PUSH_OPS.presence, ref: 0 }, push.presence);
    case "disconnect":
      return writeDisconnect(writer, push);
  }
}

function writeConnack(writer: FrameWriter, reply: Extract<Reply, { kind: "connack" }>): void {
  const { limits, resume, expiresInS } = reply;
  let bytes = textBytes(reply.sessionId) + textBytes(reply.nodeId);
  for (const { channel } of resume) bytes += FIXED_BYTES + textBytes(channel.id);
  begin(
    writer,
    { op: REPLY_OPS.connack, ref: reply.ref, fields: expiresInS === undefined ? 7 : 8 },
    bytes,
  );
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
  writer.uint(reply.newestId);
  if (expiresInS !== undefined) writer.uint(expiresInS);
}

function writeMembers(writer: FrameWriter, reply: Extract<Reply, { kind: "members" }>): void {
  const { ref, cursor, uids } = reply;
  let bytes = textBytes(cursor ?? "");
  for (const uid of uids) bytes += textBytes(uid);
  begin(writer, { op: REPLY_OPS.members, ref, fields: 2 }, bytes);
  if (cursor === undefined) writer.nil();
  else writer.text(cursor);
  writer.array(uids.length);
  for (const uid of uids) writer.text(uid);
}

function writeNumber(writer: FrameWriter, head: Omit<Head, "fields">, value: number): void {
  begin(writer, { ...head, fields: 1 });
  writer.uint(value);
}

function writePresence(
  writer: FrameWriter,
  head: Omit<Head, "fields">,
  presence: readonly Presence[],
): void {
  let bytes = 0;
  for (const { uid } of presence) bytes += FIXED_BYTES + textBytes(uid);
  begin(writer, { ...head, fields: 1 }, bytes);
  writer.array(presence.length);
  for (const { uid, online, flag } of presence) {
    writer.array(3);
    writer.text(uid);
    writer.bool(online);
    writer.uint(flag);
  }
}

function writeError(writer: FrameWriter, reply: Extract<Reply, { kind: "error" }>): void {
  const { ref } = reply;
  const code = wireCodeOf(reply.code);
  const message = reply.message || ERRORS[reply.code].message;
  begin(writer, { op: REPLY_OPS.error, ref, fields: 4 }, textBytes(code) + textBytes(message));
  writer.text(code);
  writer.text(message);
  writer.bool(mayRetry(reply.code, reply.retryAfterMs));
  writer.uint(wholeMs(reply.retryAfterMs));
}

/** Returns `ms` as an unsigned safe integer, because encoding any other number throws. */
function wholeMs(ms: number): number {
  return Math.ceil(Math.min(Math.max(ms || 0, 0), Number.MAX_SAFE_INTEGER));
}

function writeDisconnect(writer: FrameWriter, push: Extract<Push, { kind: "disconnect" }>): void {
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
