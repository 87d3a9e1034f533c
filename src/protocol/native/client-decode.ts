// Decodes a server's frames to replies and pushes, for clients (SDK and tests). The server does not
// use this file. Works in browsers. Throws only FrameError. Frames from a newer server are
// accepted: unknown flag bits, error names and close reasons are not errors.

import type { Message } from "../../broker/model.ts";
import type { ConversationChange, Push, Reply, ResumeResult } from "../protocol.ts";
import {
  ANY,
  readChannel,
  readConversation,
  readEvent,
  readMessage,
  readMessageRecord,
  readPresence,
  readState,
  readStream,
  type ServerFrameContext,
} from "./client-records.ts";
import { closeReasonOf, errorCodeOf } from "./errors.ts";
import { CONVERSATION_CHANGES, MAX_UINT32, PUSH_OPS, REPLY_OPS, RESUME_STATUS } from "./ops.ts";
import { FrameReader } from "./reader.ts";

export type ServerFrame = Reply | Push;

/** Decodes a frame. After a FrameError that is not `fatal`, the frame must be ignored. */
export function decodeServerFrame(bytes: Uint8Array, uid: string): ServerFrame {
  const reader = new FrameReader(bytes);
  const op = reader.uint("op");
  const ref = reader.absent() ? 0 : reader.uint("ref", MAX_UINT32);
  reader.ref = ref;
  const context = { reader, ref, uid };
  const frame = readPush(context, op) ?? readReply(context, op);
  if (frame === undefined) throw reader.refusal("malformed_frame", `Unknown operation ${op}`);
  reader.finish();
  return frame;
}

function readPush(context: ServerFrameContext, op: number): Push | undefined {
  const { reader } = context;
  switch (op) {
    case PUSH_OPS.message:
      return { kind: "message", ...readMessage(context) };
    case PUSH_OPS.event:
      return { kind: "event", ...readEvent(context) };
    case PUSH_OPS.messages:
      return readMessages(context);
    case PUSH_OPS.stream:
      return { kind: "stream", ...readStream(context) };
    case PUSH_OPS.command: {
      const inboxSeq = reader.uint("inboxSeq");
      return { kind: "command", inboxSeq, ...readMessage(context) };
    }
    case PUSH_OPS.conversation: {
      const change = changeOf(reader.uint("change"));
      const conversation = readConversation(context);
      return { kind: "conversation", change, conversation };
    }
    case PUSH_OPS.presence:
      return { kind: "presence", presence: readPresence(reader) };
    case PUSH_OPS.disconnect:
      return readDisconnect(reader);
    default:
      return undefined;
  }
}

function readReply(context: ServerFrameContext, op: number): Reply | undefined {
  const { reader, ref } = context;
  switch (op) {
    case REPLY_OPS.sendack:
      return readSendack(context);
    case REPLY_OPS.connack:
      return readConnack(context);
    case REPLY_OPS.history:
      return readHistory(context);
    case REPLY_OPS.presence:
      return { kind: "presence", ref, presence: readPresence(reader) };
    case REPLY_OPS.watch:
      return { kind: "watch", ref, presence: readPresence(reader) };
    case REPLY_OPS.stream:
      return { kind: "stream", ref, ...readStream(context) };
    case REPLY_OPS.cancel:
      return { kind: "cancel", ref, state: readState(reader) };
    case REPLY_OPS.conversations:
      return readConversations(context);
    case REPLY_OPS.conversation:
      return {
        kind: "conversation",
        ref,
        conversation: readConversation(context),
      };
    case REPLY_OPS.members:
      return readMembers(context);
    case REPLY_OPS.emit:
      return { kind: "emit", ref };
    case REPLY_OPS.state:
      return { kind: "state", ref };
    case REPLY_OPS.commandack:
      return { kind: "commandack", ref, count: reader.uint("count") };
    case REPLY_OPS.pong:
      return { kind: "pong", ref, serverTimeMs: reader.uint("serverTimeMs") };
    case REPLY_OPS.error:
      return readError(context);
    default:
      return undefined;
  }
}

function readConnack({ reader, ref }: ServerFrameContext): Reply {
  return {
    kind: "connack",
    ref,
    version: reader.uint("version"),
    sessionId: reader.text("sessionId", ANY),
    nodeId: reader.text("nodeId", ANY),
    serverTimeMs: reader.uint("serverTimeMs"),
    limits: reader.tuple("limits", () => ({
      maxFrameBytes: reader.uint("maxFrameBytes"),
      maxPayloadBytes: reader.uint("maxPayloadBytes"),
      idleTimeoutS: reader.uint("idleTimeoutS"),
      maxFramesPerSecond: reader.uint("maxFramesPerSecond"),
    })),
    resume: reader.list("resume", ANY, () =>
      reader.tuple("resume result", () => readResumeResult(reader)),
    ),
    newestId: reader.uint("newestId"),
    expiresInS: reader.absent() ? undefined : reader.uint("expiresInS"),
  };
}

function readResumeResult(reader: FrameReader): ResumeResult {
  const channel = readChannel(reader);
  const status = reader.uint("status") === RESUME_STATUS.ok ? "ok" : "denied";
  return { channel, status, headSeq: reader.uint("headSeq") };
}

function readSendack({ reader, ref }: ServerFrameContext): Reply {
  return {
    kind: "sendack",
    ref,
    messageId: reader.uint("messageId"),
    messageSeq: reader.uint("messageSeq"),
    clientMsgNo: reader.text("clientMsgNo", ANY),
    repeated: !reader.absent() && reader.bool("repeated"),
  };
}

function readHistory(context: ServerFrameContext): Reply {
  const { reader, ref } = context;
  return {
    kind: "history",
    ref,
    channel: readChannel(reader),
    headSeq: reader.uint("headSeq"),
    more: reader.bool("more"),
    messages: readMessageList(context),
  };
}

function readConversations(context: ServerFrameContext): Reply {
  const { reader, ref } = context;
  const cursor = readCursor(reader);
  const conversations = reader.list("conversations", ANY, () =>
    reader.tuple("conversation", () => readConversation(context)),
  );
  return { kind: "conversations", ref, cursor, conversations };
}

function readMembers({ reader, ref }: ServerFrameContext): Reply {
  const cursor = readCursor(reader);
  return {
    kind: "members",
    ref,
    cursor,
    uids: reader.list("uids", ANY, () => reader.text("uid", ANY)),
  };
}

function readCursor(reader: FrameReader): string | undefined {
  return reader.absent() ? undefined : reader.text("cursor", ANY);
}

/**
 * Returns the kind of a change. An unknown kind is treated as `read`, because the frame contains
 * the complete new state.
 */
function changeOf(change: number): ConversationChange["kind"] {
  if (change === CONVERSATION_CHANGES.unread) return "unread";
  return change === CONVERSATION_CHANGES.delete ? "delete" : "read";
}

function readError({ reader, ref }: ServerFrameContext): Reply {
  const name = reader.text("code", ANY);
  const message = reader.text("message", ANY);
  const code = errorCodeOf(name, reader.bool("retry"));
  const retryAfterMs = reader.uint("retryAfterMs");
  return { kind: "error", ref, code, message, retryAfterMs };
}

function readMessages(context: ServerFrameContext): Push {
  const { reader } = context;
  return {
    kind: "messages",
    channel: readChannel(reader),
    afterSeq: reader.uint("afterSeq"),
    throughSeq: reader.uint("throughSeq"),
    messages: readMessageList(context),
  };
}

function readDisconnect(reader: FrameReader): Push {
  return { kind: "disconnect", reason: closeReasonOf(reader.uint("code")) };
}

function readMessageList(context: ServerFrameContext): readonly Message[] {
  return context.reader.list("messages", ANY, () => readMessageRecord(context));
}
