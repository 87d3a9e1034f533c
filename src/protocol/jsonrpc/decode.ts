// Params of a JSON-RPC request → Operation. No state; the table of methods is the table of contents.
// Throws FrameError only. Fields: docs/protocol/jsonrpc.md.

import {
  DEVICE_FLAGS,
  type DeviceFlag,
  type DeviceLevel,
  MAIN_DEVICE,
  type Passthrough,
  SECONDARY_DEVICE,
} from "../../broker/model.ts";
import {
  type ConversationChange,
  MAX_CONVERSATIONS,
  MAX_SESSION_LENGTH,
  MAX_TOKEN_LENGTH,
  type Operation,
  type Ref,
  type RequestLimits,
} from "../protocol.ts";
import { RECEIPT_BIT, SIGNAL_BIT } from "../wukongim.ts";
import type { Params } from "./params.ts";

/** Version of the extended protocol; a client asks for it with `protocol` in connect. */
export const EXTENDED_VERSION = 1;
/** The newest version of WuKongIM's protocols, and what a connect without one means. */
const WUKONGIM_VERSION = 5;

const MAX_UINT32 = 0xffff_ffff;

/** What a method's params are read with. */
interface Request {
  readonly params: Params;
  readonly ref: Ref;
  readonly limits: RequestLimits;
  /** Of a connection that speaks the extended protocol. */
  readonly isExtended: boolean;
}

export interface Method {
  /** Only the extended protocol has it. */
  readonly isExtended?: boolean;
  /** It has no answer and needs no id. */
  readonly isNotification?: boolean;
  /** Undefined: there is nothing to do. */
  read(request: Request): Operation | undefined;
}

export const METHODS: ReadonlyMap<string, Method> = new Map<string, Method>([
  ["connect", { read: readConnect }],
  ["send", { read: readSend }],
  ["ping", { read: ({ ref }) => ({ kind: "ping", ref }) }],
  ["recvack", { isNotification: true, read: readRecvack }],
  ["disconnect", { isNotification: true, read: readDisconnect }],
  ["history", { isExtended: true, read: readHistory }],
  ["conversations", { isExtended: true, read: readConversations }],
  ["conversation", { isExtended: true, read: readConversation }],
  ["presence", { isExtended: true, read: readPresence }],
  ["watch", { isExtended: true, read: readWatch }],
  ["stream", { isExtended: true, read: readStream }],
  ["cancel", { isExtended: true, read: readCancel }],
  ["commandack", { isExtended: true, read: readCommandack }],
]);

/** Whether the params of a connect ask for the extended protocol. */
export function wantsExtended(params: Params): boolean {
  return params.has("protocol");
}

function readConnect({ params, ref, limits, isExtended }: Request): Operation {
  const version = isExtended ? readVersion(params) : readClientVersion(params);
  return {
    kind: "connect",
    ref,
    version,
    uid: params.id("uid"),
    token: params.text("token", MAX_TOKEN_LENGTH, ""),
    flag: readDeviceFlag(params),
    deviceId: params.optionalId("deviceId"),
    level: isExtended ? readDeviceLevel(params) : undefined,
    resume: isExtended
      ? params.objects("resume", limits.maxResumePoints).map((point) => ({
          channel: point.channel(),
          lastSeq: point.uint("lastSeq"),
          lastId: point.uint("lastId", Number.MAX_SAFE_INTEGER, 0),
        }))
      : [],
    session: isExtended ? params.text("session", MAX_SESSION_LENGTH, "") : "",
  };
}

function readVersion(params: Params): number {
  const version = params.uint("protocol");
  if (version === EXTENDED_VERSION) return version;
  throw params.refusal(
    "unsupported_version",
    `protocol ${version} is not spoken here; protocol ${EXTENDED_VERSION} is`,
  );
}

/** Newer ones, and 0, mean the newest known [WuKongIM connect]. */
function readClientVersion(params: Params): number {
  const version = params.uint("version", MAX_UINT32, 0);
  return version === 0 ? WUKONGIM_VERSION : Math.min(version, WUKONGIM_VERSION);
}

function readDeviceFlag(params: Params): DeviceFlag {
  const value = params.uint("deviceFlag", MAX_UINT32, 0);
  const flag = DEVICE_FLAGS.find((known) => known === value);
  if (flag !== undefined) return flag;
  throw params.refusal("bad_request", "deviceFlag must be 0, 1 or 2");
}

function readDeviceLevel(params: Params): DeviceLevel | undefined {
  if (!params.has("deviceLevel")) return undefined;
  const value = params.uint("deviceLevel");
  if (value === SECONDARY_DEVICE || value === MAIN_DEVICE) return value;
  throw params.refusal("bad_request", "deviceLevel must be 0 or 1");
}

function readSend({ params, ref, limits, isExtended }: Request): Operation {
  const header = params.object("header");
  return {
    kind: "send",
    ref,
    channel: params.channel(),
    clientMsgNo: params.label("clientMsgNo") ?? "",
    header: {
      noPersist: header.bool("noPersist"),
      redDot: header.bool("redDot"),
      syncOnce: header.bool("syncOnce"),
    },
    expireS: params.uint(isExtended ? "expireS" : "expire", MAX_UINT32, 0),
    streamNo: params.label("streamNo"),
    tagKey: isExtended ? params.label("tagKey") : undefined,
    passthrough: isExtended ? undefined : readPassthrough(params),
    payload: params.payload(limits.maxPayloadBytes),
  };
}

/** A topic counts only if the setting says so. Undefined: there is nothing to pass on. */
function readPassthrough(params: Params): Passthrough | undefined {
  const given = params.object("setting");
  const setting =
    (given.bool("receipt") ? RECEIPT_BIT : 0) | (given.bool("signal") ? SIGNAL_BIT : 0);
  const topic = given.bool("topic") ? (params.label("topic") ?? "") : "";
  return setting === 0 && topic === "" ? undefined : { setting, topic };
}

/** Of a command, in WuKongIM's form, it is the number in the inbox that is acknowledged. */
function readRecvack({ params, ref, isExtended }: Request): Operation | undefined {
  const messageSeq = params.uint("messageSeq");
  const messageId = params.messageId();
  if (isExtended) {
    const channel = params.channel();
    return { kind: "recvack", ref: 0, channel, messageSeq, messageId };
  }
  if (!params.object("header").bool("syncOnce"))
    return {
      kind: "recvack",
      ref: 0,
      channel: undefined,
      messageSeq,
      messageId,
    };
  if (messageSeq === 0) return undefined; // nothing is kept to acknowledge
  return { kind: "commandack", ref, inboxSeqs: [messageSeq] };
}

/** A server of WuKongIM takes it and does nothing; its clients close the socket themselves. */
function readDisconnect({ isExtended }: Request): Operation | undefined {
  return isExtended ? { kind: "disconnect", ref: 0 } : undefined;
}

function readHistory({ params, ref }: Request): Operation {
  return {
    kind: "history",
    ref,
    channel: params.channel(),
    fromSeq: params.uint("fromSeq", Number.MAX_SAFE_INTEGER, 0),
    toSeq: params.uint("toSeq", Number.MAX_SAFE_INTEGER, 0),
    limit: params.limit(MAX_UINT32),
    reverse: params.bool("reverse"),
  };
}

function readConversations({ params, ref }: Request): Operation {
  const limit = params.limit(MAX_CONVERSATIONS);
  const offset = params.uint("offset", MAX_UINT32, 0);
  return { kind: "conversations", ref, limit, offset };
}

function readConversation({ params, ref }: Request): Operation {
  const channel = params.channel();
  return { kind: "conversation", ref, channel, change: readChange(params) };
}

function readChange(params: Params): ConversationChange {
  switch (params.text("change", MAX_UINT32)) {
    case "read":
      return { kind: "read", seq: params.uint("seq") };
    case "unread":
      return { kind: "unread", unread: params.uint("unread", MAX_UINT32) };
    case "delete":
      return { kind: "delete" };
    default:
      throw params.refusal("bad_request", 'change must be "read", "unread" or "delete"');
  }
}

function readPresence({ params, ref, limits }: Request): Operation {
  const uids = params.ids("uids", limits.maxPresenceUids);
  return { kind: "presence", ref, uids };
}

function readWatch({ params, ref, limits }: Request): Operation {
  const uids = params.ids("uids", limits.maxWatchedUids);
  return { kind: "watch", ref, uids };
}

function readStream({ params, ref }: Request): Operation {
  const channel = params.channel();
  return {
    kind: "stream",
    ref,
    channel,
    clientMsgNo: params.name("clientMsgNo"),
  };
}

function readCancel({ params, ref }: Request): Operation {
  const channel = params.channel();
  return {
    kind: "cancel",
    ref,
    channel,
    clientMsgNo: params.name("clientMsgNo"),
  };
}

function readCommandack({ params, ref, limits }: Request): Operation {
  const inboxSeqs = params.uints("inboxSeqs", limits.maxCommandAcks);
  return { kind: "commandack", ref, inboxSeqs };
}
