// Converts the params of a JSON-RPC request to an operation; `METHODS` lists all methods. Throws
// only FrameError. The fields are described in docs/protocol/jsonrpc.md.

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
  type ResumePoint,
} from "../protocol.ts";
import { RECEIPT_BIT, SIGNAL_BIT } from "../wukongim.ts";
import type { Params } from "./params.ts";

/** Version of the extended protocol. A client selects it with the field `protocol` of connect. */
export const EXTENDED_VERSION = 1;
/** Newest version of WuKongIM's protocols, also used for a connect without a version. */
const WUKONGIM_VERSION = 5;

const MAX_UINT32 = 0xffff_ffff;

interface MethodInput {
  readonly params: Params;
  readonly ref: Ref;
  readonly limits: RequestLimits;
  readonly isExtended: boolean;
}

export interface Method {
  readonly isExtended?: boolean;
  /** True if the method has no response and needs no id. */
  readonly isNotification?: boolean;
  read(request: MethodInput): Operation | undefined;
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

export function wantsExtended(params: Params): boolean {
  return params.has("protocol");
}

function readConnect({ params, ref, limits, isExtended }: MethodInput): Operation {
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
    resume: isExtended ? readResumePoints(params, limits) : [],
    session: isExtended ? params.text("session", MAX_SESSION_LENGTH, "") : "",
  };
}

export function readResumePoints(params: Params, limits: RequestLimits): readonly ResumePoint[] {
  return params.objects("resume", limits.maxResumePoints).map((point) => ({
    channel: point.channel(),
    lastSeq: point.uint("lastSeq"),
    lastId: point.uint("lastId", Number.MAX_SAFE_INTEGER, 0),
  }));
}

function readVersion(params: Params): number {
  const version = params.uint("protocol");
  if (version === EXTENDED_VERSION) return version;
  throw params.refusal(
    "unsupported_version",
    `protocol ${version} is not supported: use protocol ${EXTENDED_VERSION}`,
  );
}

function readClientVersion(params: Params): number {
  const version = params.uint("version", MAX_UINT32, 0);
  return version === 0 ? WUKONGIM_VERSION : Math.min(version, WUKONGIM_VERSION);
}

function readDeviceFlag(params: Params): DeviceFlag {
  const value = params.uint("deviceFlag", MAX_UINT32, 0);
  const flag = DEVICE_FLAGS.find((deviceFlag) => deviceFlag === value);
  if (flag !== undefined) return flag;
  throw params.refusal("bad_request", "deviceFlag must be 0, 1 or 2");
}

function readDeviceLevel(params: Params): DeviceLevel | undefined {
  if (!params.has("deviceLevel")) return undefined;
  const value = params.uint("deviceLevel");
  if (value === SECONDARY_DEVICE || value === MAIN_DEVICE) return value;
  throw params.refusal("bad_request", "deviceLevel must be 0 or 1");
}

function readSend({ params, ref, limits, isExtended }: MethodInput): Operation {
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

function readPassthrough(params: Params): Passthrough | undefined {
  const settings = params.object("setting");
  const setting =
    (settings.bool("receipt") ? RECEIPT_BIT : 0) | (settings.bool("signal") ? SIGNAL_BIT : 0);
  const topic = settings.bool("topic") ? (params.label("topic") ?? "") : "";
  return setting === 0 && topic === "" ? undefined : { setting, topic };
}

/** In WuKongIM's form, the recvack of a command has the inboxSeq as `messageSeq`. */
function readRecvack({ params, ref, isExtended }: MethodInput): Operation | undefined {
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
  if (messageSeq === 0) return undefined; // the command is not in the inbox
  return { kind: "commandack", ref, inboxSeqs: [messageSeq] };
}

/** Ignores WuKongIM's form, as WuKongIM's servers do: its clients close the socket themselves. */
function readDisconnect({ isExtended }: MethodInput): Operation | undefined {
  return isExtended ? { kind: "disconnect", ref: 0 } : undefined;
}

function readHistory({ params, ref }: MethodInput): Operation {
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

function readConversations({ params, ref }: MethodInput): Operation {
  const limit = params.limit(MAX_CONVERSATIONS);
  const cursor = params.text("cursor", MAX_UINT32, "") || undefined;
  return { kind: "conversations", ref, limit, cursor };
}

function readConversation({ params, ref }: MethodInput): Operation {
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

function readPresence({ params, ref, limits }: MethodInput): Operation {
  const uids = params.ids("uids", limits.maxPresenceUids);
  return { kind: "presence", ref, uids };
}

function readWatch({ params, ref, limits }: MethodInput): Operation {
  const uids = params.ids("uids", limits.maxWatchedUids);
  return { kind: "watch", ref, uids };
}

function readStream({ params, ref }: MethodInput): Operation {
  const channel = params.channel();
  return {
    kind: "stream",
    ref,
    channel,
    clientMsgNo: params.name("clientMsgNo"),
  };
}

function readCancel({ params, ref }: MethodInput): Operation {
  const channel = params.channel();
  return {
    kind: "cancel",
    ref,
    channel,
    clientMsgNo: params.name("clientMsgNo"),
  };
}

function readCommandack({ params, ref, limits }: MethodInput): Operation {
  const inboxSeqs = params.uints("inboxSeqs", limits.maxCommandAcks);
  return { kind: "commandack", ref, inboxSeqs };
}
