// Bytes of a client → Operation, for the server. State: the slab that payloads are copied into.
// Every field is checked before it is used; throws FrameError only, with the request's ref once it
// is known. Field orders: docs/protocol/native.md.

import {
  type ChannelRef,
  DEVICE_FLAGS,
  type DeviceFlag,
  type DeviceLevel,
  GROUP_CHANNEL,
  isId,
  MAIN_DEVICE,
  PERSON_CHANNEL,
  SECONDARY_DEVICE,
} from "../../broker/model.ts";
import {
  type ConversationChange,
  FrameError,
  MAX_CONVERSATIONS,
  MAX_SESSION_LENGTH,
  MAX_TOKEN_LENGTH,
  type Operation,
  type Ref,
  type RequestLimits,
  type ResumePoint,
} from "../protocol.ts";
import {
  CLIENT_OPS,
  CONVERSATION_CHANGES,
  FLAG_BITS,
  KNOWN_FLAGS,
  MAX_UINT32,
  NATIVE_VERSION,
} from "./ops.ts";
import { FrameReader } from "./reader.ts";

interface Context {
  readonly reader: FrameReader;
  readonly limits: RequestLimits;
  readonly copies: Copies;
  readonly ref: Ref;
}

/**
 * A function that reads the operation in one binary frame, and keeps none of the frame's memory.
 */
export function createDecoder(limits: RequestLimits): (data: Uint8Array) => Operation {
  const copies = new Copies();
  return (data) => {
    const reader = new FrameReader(data);
    const { op, ref } = readHead(reader);
    const operation = readOperation({ reader, limits, copies, ref }, op);
    reader.finish();
    return operation;
  };
}

/** The ref of a frame whose other fields are not read. Throws FrameError. */
export function decodeRef(data: Uint8Array): Ref {
  return readHead(new FrameReader(data)).ref;
}

/** A frame whose `op` and `ref` are not readable is malformed, but not fatal. */
function readHead(reader: FrameReader): { op: number; ref: Ref } {
  try {
    const op = reader.uint("op", 127);
    const ref = reader.absent() ? 0 : reader.uint("ref", MAX_UINT32);
    reader.ref = ref;
    return { op, ref };
  } catch (error) {
    if (!(error instanceof FrameError) || error.fatal) throw error;
    throw new FrameError("malformed_frame", 0, error.message);
  }
}

function readOperation(context: Context, op: number): Operation {
  const { reader, ref } = context;
  switch (op) {
    case CLIENT_OPS.send:
      return readSend(context);
    case CLIENT_OPS.recvack:
      return readRecvack(context);
    case CLIENT_OPS.ping:
      return { kind: "ping", ref };
    case CLIENT_OPS.history:
      return readHistory(context);
    case CLIENT_OPS.presence:
      return readPresence(context);
    case CLIENT_OPS.stream:
      return { kind: "stream", ref, ...readStreamName(context) };
    case CLIENT_OPS.cancel:
      return { kind: "cancel", ref, ...readStreamName(context) };
    case CLIENT_OPS.conversations:
      return readConversations(context);
    case CLIENT_OPS.conversation:
      return readConversation(context);
    case CLIENT_OPS.commandack:
      return readCommandack(context);
    case CLIENT_OPS.watch:
      return readWatch(context);
    case CLIENT_OPS.connect:
      return readConnect(context);
    case CLIENT_OPS.disconnect:
      return { kind: "disconnect", ref };
    default:
      throw reader.refusal("malformed_frame", `Unknown operation ${op}`);
  }
}

function readConnect(context: Context): Operation {
  const { reader, limits, ref } = context;
  const version = reader.uint("version");
  // First: another version may have other fields.
  if (version !== NATIVE_VERSION)
    throw reader.refusal(
      "unsupported_version",
      `Version ${version} is not spoken here; version ${NATIVE_VERSION} is`,
    );
  return {
    kind: "connect",
    ref,
    version,
    uid: readId(context, "uid"),
    token: reader.text("token", MAX_TOKEN_LENGTH),
    flag: readDeviceFlag(reader),
    deviceId: reader.absent() ? "" : readDeviceId(context),
    level: reader.absent() ? undefined : readDeviceLevel(reader),
    resume: reader.absent()
      ? []
      : reader.list("resume", limits.maxResumePoints, () =>
          reader.tuple("resume point", () => readResumePoint(context)),
        ),
    session: reader.absent() ? "" : reader.text("session", MAX_SESSION_LENGTH),
  };
}

function readSend(context: Context): Operation {
  const { reader, limits, copies, ref } = context;
  const channel = readChannel(context);
  const clientMsgNo = readLabel(context, "clientMsgNo") ?? "";
  const payload = copies.of(reader.bin("payload", limits.maxPayloadBytes));
  const flags = reader.absent() ? 0 : reader.uint("flags", KNOWN_FLAGS);
  return {
    kind: "send",
    ref,
    channel,
    clientMsgNo,
    header: {
      noPersist: (flags & FLAG_BITS.noPersist) !== 0,
      redDot: (flags & FLAG_BITS.redDot) !== 0,
      syncOnce: (flags & FLAG_BITS.syncOnce) !== 0,
    },
    expireS: reader.absent() ? 0 : reader.uint("expireS", MAX_UINT32),
    streamNo: readLabel(context, "streamNo"),
    tagKey: readLabel(context, "tagKey"),
    payload,
  };
}

function readRecvack(context: Context): Operation {
  const { reader, ref } = context;
  return {
    kind: "recvack",
    ref,
    channel: readChannel(context),
    messageSeq: reader.uint("messageSeq"),
    messageId: reader.uint("messageId"),
  };
}

function readHistory(context: Context): Operation {
  const { reader, ref } = context;
  const channel = readChannel(context);
  const fromSeq = reader.uint("fromSeq");
  const toSeq = reader.uint("toSeq");
  const limit = readLimit(context, MAX_UINT32);
  const reverse = reader.absent() ? false : reader.bool("reverse");
  return { kind: "history", ref, channel, fromSeq, toSeq, limit, reverse };
}

function readPresence(context: Context): Operation {
  const { limits, ref } = context;
  const uids = readUids(context, limits.maxPresenceUids);
  return { kind: "presence", ref, uids };
}

function readWatch(context: Context): Operation {
  const { limits, ref } = context;
  const uids = readUids(context, limits.maxWatchedUids);
  return { kind: "watch", ref, uids };
}

function readStreamName(context: Context) {
  const channel = readChannel(context);
  return { channel, clientMsgNo: readName(context, "clientMsgNo") };
}

function readConversations(context: Context): Operation {
  const { reader, ref } = context;
  const limit = readLimit(context, MAX_CONVERSATIONS);
  const offset = reader.absent() ? 0 : reader.uint("offset", MAX_UINT32);
  return { kind: "conversations", ref, limit, offset };
}

function readConversation(context: Context): Operation {
  const { reader, ref } = context;
  const channel = readChannel(context);
  return { kind: "conversation", ref, channel, change: readChange(reader) };
}

function readChange(reader: FrameReader): ConversationChange {
  const change = reader.uint("change");
  switch (change) {
    case CONVERSATION_CHANGES.read:
      return { kind: "read", seq: reader.uint("seq") };
    case CONVERSATION_CHANGES.unread:
      return { kind: "unread", unread: reader.uint("unread", MAX_UINT32) };
    case CONVERSATION_CHANGES.delete:
      return { kind: "delete" };
    default:
      throw reader.refusal("bad_request", "change must be 0, 1 or 2");
  }
}

function readCommandack(context: Context): Operation {
  const { reader, limits, ref } = context;
  const inboxSeqs = reader.list("inboxSeqs", limits.maxCommandAcks, () => reader.uint("inboxSeq"));
  return { kind: "commandack", ref, inboxSeqs };
}

function readResumePoint(context: Context): ResumePoint {
  const { reader } = context;
  const channel = readChannel(context);
  const lastSeq = reader.uint("lastSeq");
  const lastId = reader.absent() ? 0 : reader.uint("lastId");
  return { channel, lastSeq, lastId };
}

function readDeviceId(context: Context): string {
  const { reader, limits } = context;
  const id = reader.text("deviceId", limits.maxIdLength, "bad_id");
  if (id !== "" && !isId(id)) throw reader.refusal("bad_id", "deviceId is not a valid id");
  return id;
}

function readDeviceFlag(reader: FrameReader): DeviceFlag {
  const value = reader.uint("deviceFlag");
  const flag = DEVICE_FLAGS.find((known) => known === value);
  if (flag === undefined) throw reader.refusal("bad_request", "deviceFlag must be 0, 1 or 2");
  return flag;
}

function readDeviceLevel(reader: FrameReader): DeviceLevel {
  const value = reader.uint("deviceLevel");
  if (value !== SECONDARY_DEVICE && value !== MAIN_DEVICE)
    throw reader.refusal("bad_request", "deviceLevel must be 0 or 1");
  return value;
}

function readChannel(context: Context): ChannelRef {
  const type = context.reader.uint("channelType");
  if (type !== PERSON_CHANNEL && type !== GROUP_CHANNEL)
    throw context.reader.refusal("bad_request", "channelType must be 1 (personal) or 2 (group)");
  return { type, id: readId(context, "channelId") };
}

function readId(context: Context, what: string): string {
  const { reader, limits } = context;
  const id = reader.text(what, limits.maxIdLength, "bad_id");
  if (!isId(id)) throw reader.refusal("bad_id", `${what} is not a valid id`);
  return id;
}

/** At most `max` ids. */
function readUids(context: Context, max: number): readonly string[] {
  return context.reader.list("uids", max, () => readId(context, "uid"));
}

/** A number or label of the client; nil and "" both mean none. Only its length is checked. */
function readLabel(context: Context, what: string): string | undefined {
  const { reader, limits } = context;
  if (reader.absent()) return undefined;
  return reader.text(what, limits.maxIdLength) || undefined;
}

/** A label that must not be empty. */
function readName(context: Context, what: string): string {
  const { reader, limits } = context;
  const name = reader.text(what, limits.maxIdLength);
  if (name === "") throw reader.refusal("bad_request", `${what} must not be empty`);
  return name;
}

function readLimit({ reader }: Context, max: number): number {
  const limit = reader.uint("limit", max);
  if (limit === 0) throw reader.refusal("bad_request", "limit must not be 0");
  return limit;
}

/** Bytes of the slab; small, because the last copy alive keeps all of it. */
const SLAB_BYTES = 8 * 1024;
/** Longer payloads get memory of their own. */
const MAX_SHARED = 1024;
/** V8 keeps typed arrays up to this size in its own heap, which is cheap. */
const MAX_ON_HEAP = 64;

/**
 * Copies of payloads, cut from a shared slab: a typed array with its own memory costs about a
 * microsecond. The slab's bytes are written once, so each copy belongs to its owner.
 */
class Copies {
  #slab = new Uint8Array(0);
  #at = 0;

  /** A copy of `bytes`; always a plain Uint8Array. */
  of(bytes: Uint8Array): Uint8Array {
    const length = bytes.length;
    if (length > MAX_SHARED || length <= MAX_ON_HEAP) return new Uint8Array(bytes);
    if (length > this.#slab.length - this.#at) {
      this.#slab = new Uint8Array(SLAB_BYTES);
      this.#at = 0;
    }
    const start = this.#at;
    this.#at += length;
    const copy = this.#slab.subarray(start, this.#at);
    copy.set(bytes);
    return copy;
  }
}
