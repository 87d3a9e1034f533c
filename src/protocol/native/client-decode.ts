// Bytes of a server → Reply or Push, for clients (SDK, tests); the server does not load it. Pure, browser-safe, throws nothing but
// FrameError. Lenient where a newer server may say more: unknown flag bits, error names and close reasons are no error.

import {
  type ChannelRef,
  channelKey,
  type DeviceFlag,
  GROUP_CHANNEL,
  type Message,
  PERSON_CHANNEL,
  type Presence,
} from "../../broker/model.ts";
import type { Push, Reply, ResumeResult } from "../protocol.ts";
import { closeReasonOf, errorCodeOf } from "./errors.ts";
import {
  FLAG_BITS,
  MAX_UINT32,
  PUSH_OPS,
  REPLY_OPS,
  RESUME_STATUS,
} from "./ops.ts";
import { FrameReader } from "./reader.ts";

export type ServerFrame = Reply | Push;

/** No bound but the frame's own size: a client chose its server. */
const ANY = MAX_UINT32;

/**
 * The reply or push in one frame, as the client of user `uid` sees it. Throws FrameError; one that is not `fatal` is of a newer server and
 * is to be ignored.
 */
export function decodeServerFrame(bytes: Uint8Array, uid: string): ServerFrame {
  const reader = new FrameReader(bytes);
  const op = reader.uint("op");
  const ref = reader.absent() ? 0 : reader.uint("ref", MAX_UINT32);
  reader.ref = ref;
  const frame = readFrame({ reader, ref, uid }, op);
  reader.finish();
  return frame;
}

interface Context {
  readonly reader: FrameReader;
  readonly ref: number;
  readonly uid: string;
}

function readFrame(context: Context, op: number): ServerFrame {
  const { reader, ref } = context;
  switch (op) {
    case PUSH_OPS.message: {
      const { channel, message } = readMessage(context);
      return { kind: "message", channel, message };
    }
    case PUSH_OPS.messages:
      return readMessages(context);
    case PUSH_OPS.disconnect:
      return readDisconnect(reader);
    case REPLY_OPS.sendack:
      return readSendack(context);
    case REPLY_OPS.connack:
      return readConnack(context);
    case REPLY_OPS.history:
      return readHistory(context);
    case REPLY_OPS.presence:
      return readPresence(context);
    case REPLY_OPS.pong:
      return { kind: "pong", ref, serverTimeMs: reader.uint("serverTimeMs") };
    case REPLY_OPS.error:
      return readError(context);
    default:
      throw reader.refusal("malformed_frame", `Unknown operation ${op}`);
  }
}

function readConnack({ reader, ref }: Context): Reply {
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
  };
}

function readResumeResult(reader: FrameReader): ResumeResult {
  const channel = readChannel(reader);
  const status = reader.uint("status") === RESUME_STATUS.ok ? "ok" : "denied";
  return { channel, status, headSeq: reader.uint("headSeq") };
}

function readSendack({ reader, ref }: Context): Reply {
  return {
    kind: "sendack",
    ref,
    messageId: reader.uint("messageId"),
    messageSeq: reader.uint("messageSeq"),
    clientMsgNo: reader.text("clientMsgNo", ANY),
  };
}

function readHistory(context: Context): Reply {
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

function readPresence({ reader, ref }: Context): Reply {
  const readOne = (): Presence => ({
    uid: reader.text("uid", ANY),
    online: reader.bool("online"),
    flag: readDeviceFlag(reader),
  });
  const presence = reader.list("presence", ANY, () =>
    reader.tuple("presence", readOne),
  );
  return { kind: "presence", ref, presence };
}

function readError({ reader, ref }: Context): Reply {
  const name = reader.text("code", ANY);
  const message = reader.text("message", ANY);
  const code = errorCodeOf(name, reader.bool("retry"));
  const retryAfterMs = reader.uint("retryAfterMs");
  return { kind: "error", ref, code, message, retryAfterMs };
}

function readMessages(context: Context): Push {
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
  const code = reader.uint("code");
  const reason = closeReasonOf(reader.text("reason", ANY), code);
  reader.text("message", ANY);
  return { kind: "disconnect", reason };
}

function readMessageList(context: Context): readonly Message[] {
  const { reader } = context;
  return reader.list("messages", ANY, () =>
    reader.tuple("message", () => readMessage(context).message),
  );
}

/** `channel` is named as the receiver does; the message itself keeps the sender's name for it. */
function readMessage({ reader, uid }: Context): {
  channel: ChannelRef;
  message: Message;
} {
  const channel = readChannel(reader);
  const messageSeq = reader.uint("messageSeq");
  const messageId = reader.uint("messageId");
  const fromUid = reader.text("fromUid", ANY);
  const clientMsgNo = reader.text("clientMsgNo", ANY);
  const timestampMs = reader.uint("timestampMs");
  const flags = reader.uint("flags");
  const message: Message = {
    messageId,
    messageSeq,
    key: channelKey(channel, uid),
    channel: channelAsSent(channel, { fromUid, uid }),
    fromUid,
    clientMsgNo,
    timestampMs,
    header: {
      noPersist: (flags & FLAG_BITS.noPersist) !== 0,
      redDot: (flags & FLAG_BITS.redDot) !== 0,
    },
    expireS: reader.uint("expireS"),
    payload: reader.bin("payload", ANY),
    streamNo: readLabel(reader, "streamNo"),
    tagKey: readLabel(reader, "tagKey"),
  };
  return { channel, message };
}

/** In a conversation what others sent was sent to us. */
function channelAsSent(
  channel: ChannelRef,
  { fromUid, uid }: { readonly fromUid: string; readonly uid: string },
): ChannelRef {
  if (channel.type === GROUP_CHANNEL || fromUid === uid) return channel;
  return { type: PERSON_CHANNEL, id: uid };
}

function readLabel(reader: FrameReader, what: string): string | undefined {
  return reader.absent() ? undefined : reader.text(what, ANY);
}

function readChannel(reader: FrameReader): ChannelRef {
  const type = reader.uint("channelType");
  if (type !== PERSON_CHANNEL && type !== GROUP_CHANNEL)
    throw reader.refusal("bad_request", `Unknown channel type ${type}`);
  return { type, id: reader.text("channelId", ANY) };
}

function readDeviceFlag(reader: FrameReader): DeviceFlag {
  const value = reader.uint("deviceFlag");
  if (value !== 0 && value !== 1 && value !== 2)
    throw reader.refusal("bad_request", `Unknown device flag ${value}`);
  return value;
}
