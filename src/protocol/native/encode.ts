// Reply and Push → bytes, for the server. State: the writer's slab, shared by all connections. MESSAGE, EVENT and SENDACK are written
// once per message or chunk: one pass, no array in between. Frames are immutable and may be kept. Field orders: docs/protocol/native.md.

import type { Push, Reply } from "../protocol.ts";
import {
  writeConversationPush,
  writeConversationReply,
  writeConversations,
} from "./encode-conversation.ts";
import {
  writeCommand,
  writeHistory,
  writeMessagePush,
  writeMessages,
  writeSendack,
} from "./encode-message.ts";
import {
  writeConnack,
  writeDisconnect,
  writeError,
  writeNumber,
  writePresence,
} from "./encode-session.ts";
import { stateNumber, writeEvent, writeStream } from "./encode-stream.ts";
import { PUSH_OPS, REPLY_OPS } from "./ops.ts";
import { FrameWriter } from "./writer.ts";

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
    case "commandack":
      return writeNumber(writer, { op, ref }, reply.count);
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
      return writePresence(
        writer,
        { op: PUSH_OPS.presence, ref: 0 },
        push.presence,
      );
    case "disconnect":
      return writeDisconnect(writer, push);
  }
}
