// Decodes a client's frames to operations, on the server. Throws only FrameError, with the
// request's ref if it could be read. docs/protocol/native.md describes the order of the fields.

import {
  type ChannelRef,
  DEVICE_FLAGS,
  type DeviceFlag,
  type DeviceLevel,
  GROUP_CHANNEL,
  isId,
  MAIN_DEVICE,
  MAX_CLIENT_EVENT_BYTES,
  MAX_CLIENT_EVENT_TYPE,
  MAX_TOKEN_LENGTH,
  PERSON_CHANNEL,
  SECONDARY_DEVICE,
} from "../../broker/model.ts";
import {
  type ConversationChange,
  FrameError,
  type Greeting,
  MAX_CONVERSATIONS,
  MAX_MEMBERS,
  MAX_SESSION_LENGTH,
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

interface RequestContext {
  readonly reader: FrameReader;
  readonly limits: RequestLimits;
  readonly copier: PayloadCopier;
  readonly ref: Ref;
}

/** Returns a decoder. The decoded operations do not refer to the frame's memory. */
export function createDecoder(limits: RequestLimits): (data: Uint8Array) => Operation {
  const copier = new PayloadCopier();
  return (data) => {
    const reader = new FrameReader(data);
    const { op, ref } = readHead(reader);
    const operation = readOperation({ reader, limits, copier, ref }, op);
    reader.finish();
    return operation;
  };
}

const nothing = () => undefined;
const NO_POINTS: readonly ResumePoint[] = [];

/**
 * Creates a decoder for CONNECT. The decoder ignores bytes after the known fields. It skips the
 * resume points, because they are costly to decode and the credential is not checked yet.
 * `finishDecoding` decodes a copy of the whole frame.
 */
export function createConnectDecoder(limits: RequestLimits): (data: Uint8Array) => Greeting {
  const copier = new PayloadCopier();
  return (data) => {
    const reader = new FrameReader(data);
    const { op, ref } = readHead(reader);
    if (op !== CLIENT_OPS.connect) throw reader.refusal("not_connected", "");
    const context = { reader, limits, copier, ref };
    const fields = readCredential(context);
    const points = reader.absent()
      ? 0
      : reader.list("resume", limits.maxResumePoints, () => reader.tuple("resume point", nothing))
          .length;
    const sessionName = readSessionName(reader);
    if (points === 0) return { ...fields, sessionName, finishDecoding: () => NO_POINTS };
    const frame = new Uint8Array(data); // a copy, because the frame's memory is reused
    const finishDecoding = () => {
      const copy = new FrameReader(frame);
      readHead(copy);
      return readConnect({ ...context, reader: copy }).resume;
    };
    return { ...fields, sessionName, finishDecoding };
  };
}

export function decodeRef(data: Uint8Array): Ref {
  return readHead(new FrameReader(data)).ref;
}

/**
 * Reads `op` and `ref`. If one of them has an invalid value, the frame is malformed, but the
 * connection continues.
 */
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

function readOperation(context: RequestContext, op: number): Operation {
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
    case CLIENT_OPS.members:
      return readMembers(context);
    case CLIENT_OPS.commandack:
      return readCommandack(context);
    case CLIENT_OPS.watch:
      return readWatch(context);
    case CLIENT_OPS.emit:
      return readEmit(context);
    case CLIENT_OPS.state:
      return { kind: "state", ref, foreground: reader.bool("foreground") };
    case CLIENT_OPS.refresh:
      return { kind: "refresh", ref, token: reader.text("token", MAX_TOKEN_LENGTH) };
    case CLIENT_OPS.connect:
      return readConnect(context);
    case CLIENT_OPS.disconnect:
      return { kind: "disconnect", ref };
    default:
      throw reader.refusal("malformed_frame", `Unknown operation ${op}`);
  }
}

function readConnect(context: RequestContext) {
  const { reader, limits } = context;
  return {
    ...readCredential(context),
    resume: reader.absent()
      ? []
      : reader.list("resume", limits.maxResumePoints, () =>
          reader.tuple("resume point", () => readResumePoint(context)),
        ),
    sessionName: readSessionName(reader),
  };
}

function readCredential(context: RequestContext) {
  const { reader, ref } = context;
  const version = reader.uint("version");
  // checked first, because a different version may have different fields
  if (version !== NATIVE_VERSION)
    throw reader.refusal(
      "unsupported_version",
      `Version ${version} is not supported: use version ${NATIVE_VERSION}`,
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
  } as const;
}

function readSessionName(reader: FrameReader): string {
  return reader.absent() ? "" : reader.text("session", MAX_SESSION_LENGTH);
}

function readSend(context: RequestContext): Operation {
  const { reader, limits, copier, ref } = context;
  const channel = readChannel(context);
  const clientMsgNo = readLabel(context, "clientMsgNo") ?? "";
  const payload = copier.copy(reader.bin("payload", limits.maxPayloadBytes));
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

function readRecvack(context: RequestContext): Operation {
  const { reader, ref } = context;
  return {
    kind: "recvack",
    ref,
    channel: readChannel(context),
    messageSeq: reader.uint("messageSeq"),
    messageId: reader.uint("messageId"),
  };
}

function readHistory(context: RequestContext): Operation {
  const { reader, ref } = context;
  const channel = readChannel(context);
  const fromSeq = reader.uint("fromSeq");
  const toSeq = reader.uint("toSeq");
  const limit = readLimit(context, MAX_UINT32);
  const reverse = reader.absent() ? false : reader.bool("reverse");
  return { kind: "history", ref, channel, fromSeq, toSeq, limit, reverse };
}

function readPresence(context: RequestContext): Operation {
  const { limits, ref } = context;
  const uids = readUids(context, limits.maxPresenceUids);
  return { kind: "presence", ref, uids };
}

function readWatch(context: RequestContext): Operation {
  const { limits, ref } = context;
  const uids = readUids(context, limits.maxWatchedUids);
  return { kind: "watch", ref, uids };
}

function readEmit(context: RequestContext): Operation {
  const { reader, ref } = context;
  const channel = readChannel(context);
  const type = reader.text("type", MAX_CLIENT_EVENT_TYPE);
  const data = reader.absent() ? "" : reader.text("data", MAX_CLIENT_EVENT_BYTES, "too_large");
  return { kind: "emit", ref, channel, type, data };
}

function readStreamName(context: RequestContext) {
  const channel = readChannel(context);
  return { channel, clientMsgNo: readName(context, "clientMsgNo") };
}

function readConversations(context: RequestContext): Operation {
  const { reader, ref } = context;
  const limit = readLimit(context, MAX_CONVERSATIONS);
  const cursor = readCursor(reader);
  const since = reader.absent() ? {} : { sinceMs: reader.uint("sinceMs") };
  return { kind: "conversations", ref, limit, cursor, ...since };
}

function readCursor(reader: FrameReader): string | undefined {
  return reader.absent() ? undefined : reader.text("cursor", MAX_UINT32) || undefined;
}

function readConversation(context: RequestContext): Operation {
  const { reader, ref } = context;
  const channel = readChannel(context);
  const change = reader.absent() ? undefined : readChange(reader);
  return { kind: "conversation", ref, channel, change };
}

function readMembers(context: RequestContext): Operation {
  const { reader, ref } = context;
  const channel = readChannel(context);
  const limit = readLimit(context, MAX_MEMBERS);
  return { kind: "members", ref, channel, limit, cursor: readCursor(reader) };
}

function readChange(reader: FrameReader): ConversationChange {
  const change = reader.uint("change");
  switch (change) {
    case CONVERSATION_CHANGES.read:
      return { kind: "read", seq: reader.uint("seq") };
    case CONVERSATION_CHANGES.unread:
      return { kind: "unread", unread: reader.uint("unread", MAX_UINT32) };
    case CONVERSATION_CHANGES.delete:
      return reader.absent() ? { kind: "delete" } : { kind: "delete", seq: reader.uint("seq") };
    default:
      throw reader.refusal("bad_request", "change must be 0, 1 or 2");
  }
}

function readCommandack(context: RequestContext): Operation {
  const { reader, limits, ref } = context;
  const inboxSeqs = reader.list("inboxSeqs", limits.maxCommandAcks, () => reader.uint("inboxSeq"));
  return { kind: "commandack", ref, inboxSeqs };
}

function readResumePoint(context: RequestContext): ResumePoint {
  const { reader } = context;
  const channel = readChannel(context);
  const lastSeq = reader.uint("lastSeq");
  const lastId = reader.absent() ? 0 : reader.uint("lastId");
  return { channel, lastSeq, lastId };
}

function readDeviceId(context: RequestContext): string {
  const { reader, limits } = context;
  const id = reader.text("deviceId", limits.maxIdLength, "bad_id");
  if (id !== "" && !isId(id)) throw reader.refusal("bad_id", "deviceId is not a valid id");
  return id;
}

function readDeviceFlag(reader: FrameReader): DeviceFlag {
  const value = reader.uint("deviceFlag");
  const flag = DEVICE_FLAGS.find((deviceFlag) => deviceFlag === value);
  if (flag === undefined) throw reader.refusal("bad_request", "deviceFlag must be 0, 1 or 2");
  return flag;
}

function readDeviceLevel(reader: FrameReader): DeviceLevel {
  const value = reader.uint("deviceLevel");
  if (value !== SECONDARY_DEVICE && value !== MAIN_DEVICE)
    throw reader.refusal("bad_request", "deviceLevel must be 0 or 1");
  return value;
}

function readChannel(context: RequestContext): ChannelRef {
  const type = context.reader.uint("channelType");
  if (type !== PERSON_CHANNEL && type !== GROUP_CHANNEL)
    throw context.reader.refusal("bad_request", "channelType must be 1 (personal) or 2 (group)");
  return { type, id: readId(context, "channelId") };
}

function readId(context: RequestContext, field: string): string {
  const { reader, limits } = context;
  const id = reader.text(field, limits.maxIdLength, "bad_id");
  if (!isId(id)) throw reader.refusal("bad_id", `${field} is not a valid id`);
  return id;
}

function readUids(context: RequestContext, max: number): readonly string[] {
  return context.reader.list("uids", max, () => readId(context, "uid"));
}

function readLabel(context: RequestContext, field: string): string | undefined {
  const { reader, limits } = context;
  if (reader.absent()) return undefined;
  return reader.text(field, limits.maxIdLength) || undefined;
}

function readName(context: RequestContext, field: string): string {
  const { reader, limits } = context;
  const name = reader.text(field, limits.maxIdLength);
  if (name === "") throw reader.refusal("bad_request", `${field} must not be empty`);
  return name;
}

function readLimit({ reader }: RequestContext, max: number): number {
  const limit = reader.uint("limit", max);
  if (limit === 0) throw reader.refusal("bad_request", "limit must not be 0");
  return limit;
}

/** Size of a slab. It is small, because one retained payload keeps the whole slab in memory. */
const SLAB_BYTES = 8 * 1024;
/** Maximum size of a payload that is copied into a slab. A longer payload has its own memory. */
const MAX_SHARED_BYTES = 1024;
/** Maximum size of a payload that V8 allocates cheaply in its own heap, without a slab. */
const MAX_ON_HEAP_BYTES = 64;

/**
 * Copies payloads into a shared slab, because allocating a typed array with its own memory takes a
 * microsecond. Each byte of a slab is written once.
 */
class PayloadCopier {
  #slab = new Uint8Array(0);
  #offset = 0;

  /** Returns a copy of `bytes`, always as a plain Uint8Array. */
  copy(bytes: Uint8Array): Uint8Array {
    const length = bytes.length;
    if (length > MAX_SHARED_BYTES || length <= MAX_ON_HEAP_BYTES) return new Uint8Array(bytes);
    if (length > this.#slab.length - this.#offset) {
      this.#slab = new Uint8Array(SLAB_BYTES);
      this.#offset = 0;
    }
    const start = this.#offset;
    this.#offset += length;
    const copy = this.#slab.subarray(start, this.#offset);
    copy.set(bytes);
    return copy;
  }
}
