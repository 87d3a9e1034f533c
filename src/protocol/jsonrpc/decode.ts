// Converts a request's params in the extended form to an operation. Throws only FrameError.
// docs/protocol/jsonrpc.md describes the fields.

import {
  DEVICE_FLAGS,
  type DeviceFlag,
  type DeviceLevel,
  historyRange,
  MAIN_DEVICE,
  MAX_CLIENT_EVENT_TYPE,
  MAX_TOKEN_LENGTH,
  SECONDARY_DEVICE,
} from "../../broker/model.ts";
import {
  type ConversationChange,
  MAX_CONVERSATIONS,
  MAX_MEMBERS,
  MAX_SESSION_LENGTH,
  type Operation,
  type ResumePoint,
} from "../protocol.ts";
import type { Params } from "./params.ts";
import type { Method, MethodInput } from "./view.ts";

/** Version of the extended form. A client selects it with the field `protocol` of connect. */
export const EXTENDED_VERSION = 1;
const MAX_UINT32 = 0xffff_ffff;

export const METHODS: ReadonlyMap<string, Method> = new Map<string, Method>([
  ["connect", { read: readConnect }],
  ["send", { read: readSend }],
  ["ping", { read: ({ ref }) => ({ kind: "ping", ref }) }],
  ["recvack", { isNotification: true, read: readRecvack }],
  ["disconnect", { isNotification: true, read: readDisconnect }],
  ["history", { read: readHistory }],
  ["conversations", { read: readConversations }],
  ["conversation", { read: readConversation }],
  ["members", { read: readMembers }],
  ["presence", { read: readPresence }],
  ["watch", { read: readWatch }],
  ["stream", { read: readStream }],
  ["cancel", { read: readCancel }],
  ["commandack", { read: readCommandack }],
  ["emit", { isNotification: true, read: readEmit }],
  ["refresh", { read: readRefresh }],
  ["state", { read: readState }],
]);

export function wantsExtended(params: Params): boolean {
  return params.has("protocol");
}

function readConnect({ params, ref, limits }: MethodInput): Operation {
  return {
    kind: "connect",
    ref,
    version: readVersion(params),
    ...readDevice(params),
    level: readDeviceLevel(params),
    resume: readResumePoints(params, limits),
    sessionName: params.text("session", MAX_SESSION_LENGTH, ""),
  };
}

/** Reads the user, the credential and the device of a connect in the extended or the plain form. */
export function readDevice(params: Params) {
  return {
    uid: params.id("uid"),
    token: params.text("token", MAX_TOKEN_LENGTH, ""),
    flag: readDeviceFlag(params),
    deviceId: params.optionalId("deviceId"),
  };
}

export function readResumePoints(
  params: Params,
  limits: MethodInput["limits"],
): readonly ResumePoint[] {
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

function readSend({ params, ref, limits }: MethodInput): Operation {
  return {
    kind: "send",
    ref,
    ...readMessage(params, limits, { redDot: true }),
    expireS: params.uint("expireS", MAX_UINT32, 0),
    tagKey: params.label("tagKey"),
  };
}

/**
 * Reads the fields of a send in the extended or the plain form. `absent` contains the default for a
 * missing `redDot`.
 */
export function readMessage(
  params: Params,
  limits: MethodInput["limits"],
  absent: { readonly redDot: boolean },
) {
  const header = params.object("header");
  return {
    channel: params.channel(),
    clientMsgNo: params.label("clientMsgNo") ?? "",
    header: {
      noPersist: header.bool("noPersist"),
      redDot: header.bool("redDot", absent.redDot),
      syncOnce: header.bool("syncOnce"),
    },
    streamNo: params.label("streamNo"),
    payload: params.payload(limits.maxPayloadBytes),
  };
}

function readRecvack({ params }: MethodInput): Operation {
  const messageSeq = params.uint("messageSeq");
  const messageId = params.messageId();
  return { kind: "recvack", ref: 0, channel: params.channel(), messageSeq, messageId };
}

function readDisconnect(): Operation {
  return { kind: "disconnect", ref: 0 };
}

function readHistory({ params, ref }: MethodInput): Operation {
  const seq = (name: string) =>
    params.has(name) ? params.uint(name, Number.MAX_SAFE_INTEGER) : undefined;
  const bounds = { before: seq("before"), after: seq("after"), toSeq: seq("toSeq") };
  const { fromSeq, toSeq, reverse } = historyRange({ ...bounds, fromSeq: seq("fromSeq") ?? 0 });
  return {
    kind: "history",
    ref,
    channel: params.channel(),
    fromSeq,
    toSeq,
    limit: params.limit(MAX_UINT32),
    reverse: params.bool("reverse", reverse),
  };
}

function readConversations({ params, ref }: MethodInput): Operation {
  const limit = params.limit(MAX_CONVERSATIONS);
  const since = params.has("sinceMs") ? { sinceMs: params.uint("sinceMs") } : {};
  return { kind: "conversations", ref, limit, cursor: readCursor(params), ...since };
}

function readCursor(params: Params): string | undefined {
  return params.text("cursor", MAX_UINT32, "") || undefined;
}

function readConversation({ params, ref }: MethodInput): Operation {
  const channel = params.channel();
  const change = params.has("change") ? readChange(params) : undefined;
  return { kind: "conversation", ref, channel, change };
}

function readMembers({ params, ref }: MethodInput): Operation {
  const channel = params.channel();
  const limit = params.limit(MAX_MEMBERS);
  return { kind: "members", ref, channel, limit, cursor: readCursor(params) };
}

function readChange(params: Params): ConversationChange {
  switch (params.text("change", MAX_UINT32)) {
    case "read":
      return { kind: "read", seq: params.uint("seq") };
    case "unread":
      return { kind: "unread", unread: params.uint("unread", MAX_UINT32) };
    case "delete":
      return params.has("seq") ? { kind: "delete", seq: params.uint("seq") } : { kind: "delete" };
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

function readEmit({ params, ref }: MethodInput): Operation {
  const channel = params.channel();
  const type = params.text("type", MAX_CLIENT_EVENT_TYPE);
  const data = params.text("data", MAX_UINT32, "");
  return { kind: "emit", ref, channel, type, data };
}

function readRefresh({ params, ref }: MethodInput): Operation {
  return { kind: "refresh", ref, token: params.text("token", MAX_TOKEN_LENGTH) };
}

function readState({ params, ref }: MethodInput): Operation {
  if (!params.has("foreground"))
    throw params.refusal("bad_request", "foreground must be true or false");
  return { kind: "state", ref, foreground: params.bool("foreground") };
}
