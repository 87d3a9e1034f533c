// The form of JSON-RPC that WuKongIM's clients use. Field names, field order and omitted fields
// match WuKongIM's. Replies and pushes that WuKongIM does not have are not sent.

import { CLOSE_REASONS, type CloseReason, type ErrorCode } from "../../broker/errors.ts";
import { type ChannelRef, type Message, type Passthrough, SYSTEM_UID } from "../../broker/model.ts";
import { readDevice, readMessage } from "../../protocol/jsonrpc/decode.ts";
import { base64, notification } from "../../protocol/jsonrpc/encode.ts";
import type { Params } from "../../protocol/jsonrpc/params.ts";
import type { Method, MethodInput, View } from "../../protocol/jsonrpc/view.ts";
import type { Frames, Operation, Push, Reply } from "../../protocol/protocol.ts";
import { clientEvent, nodeNumber, RECEIPT_BIT, SIGNAL_BIT, snapshotEvents } from "./client-view.ts";
import { BANNED_REASON, KICKED_REASON, reasonOf, SUCCESS_REASON } from "./reason-codes.ts";
import type { ClientEvent } from "./stream-lane.ts";

/** Newest version of WuKongIM's protocols, also used for a connect without a version. */
const NEWEST_VERSION = 5;
const MAX_UINT32 = 0xffff_ffff;
/**
 * Error codes for which the reply to a failed send is an error response. For all other codes, the
 * reply is a result.
 */
const BAD_REQUESTS: ReadonlySet<ErrorCode> = new Set<ErrorCode>(["bad_request", "malformed_frame"]);

/** Echoed fields of a reply to a request that could not be read. */
const NO_ECHO: EchoedFields = { header: undefined, clientTimestamp: 0 };

const WUKONGIM_JSONRPC: View = {
  format: "jsonrpc-wukongim",
  acknowledges: true,
  methods: new Map<string, Method>([
    ["connect", { read: readConnect }],
    ["send", { read: readSend }],
    ["ping", { read: ({ ref }) => ({ kind: "ping", ref }) }],
    ["recvack", { isNotification: true, read: readRecvack }],
    // WuKongIM's servers also ignore this request. The clients close the socket themselves.
    ["disconnect", { isNotification: true, read: () => undefined }],
  ]),
  unknownId: undefined, // WuKongIM's servers also omit the id
  remember: echoedFieldsOf,
  isResult: (code, method) => method === "send" && !BAD_REQUESTS.has(code),
  result: (reply, { remembered }) => wukongimResult(reply, (remembered ?? NO_ECHO) as EchoedFields),
  encode: encodeWukongim,
};

/**
 * Plain form of JSON-RPC, and the error numbers of all forms. A client that sends no `protocol` in
 * `connect` is treated as a WuKongIM client.
 */
export const JSONRPC_FORMS = { plain: WUKONGIM_JSONRPC, errorNumber: reasonOf };

// --- Requests ------------------------------------------------------------------------------------

function readConnect({ params, ref }: MethodInput): Operation {
  const version = params.uint("version", MAX_UINT32, 0) || NEWEST_VERSION;
  return {
    kind: "connect",
    ref,
    version: Math.min(version, NEWEST_VERSION),
    ...readDevice(params),
    level: undefined,
    resume: [],
    sessionName: "",
  };
}

function readSend({ params, ref, limits }: MethodInput): Operation {
  return {
    kind: "send",
    ref,
    ...readMessage(params, limits, { redDot: false }),
    expireS: params.uint("expire", MAX_UINT32, 0),
    tagKey: undefined,
    passthrough: readPassthrough(params),
    allowsReuse: true,
  };
}

function readPassthrough(params: Params): Passthrough | undefined {
  const settings = params.object("setting");
  const setting =
    (settings.bool("receipt") ? RECEIPT_BIT : 0) | (settings.bool("signal") ? SIGNAL_BIT : 0);
  const topic = settings.bool("topic") ? (params.label("topic") ?? "") : "";
  return setting === 0 && topic === "" ? undefined : { setting, topic };
}

/** Reads a recvack. In the recvack of a command, `messageSeq` is the `inboxSeq`. */
function readRecvack({ params, ref }: MethodInput): Operation | undefined {
  const messageSeq = params.uint("messageSeq");
  const messageId = params.messageId();
  if (!params.object("header").bool("syncOnce"))
    return { kind: "recvack", ref: 0, channel: undefined, messageSeq, messageId };
  if (messageSeq === 0) return undefined; // the command is not in the inbox
  return { kind: "commandack", ref, inboxSeqs: [messageSeq] };
}

function echoedFieldsOf({ kind }: Operation, params: Params): EchoedFields {
  const isConnect = kind === "connect";
  const header = params.object("header");
  return {
    header: kind === "send" ? headerFlags((flag) => header.bool(flag)) : undefined,
    clientTimestamp: isConnect ? params.uint("clientTimestamp", Number.MAX_SAFE_INTEGER, 0) : 0,
  };
}

// --- Responses and pushes ------------------------------------------------------------------------

/** Flags of a message's header in WuKongIM's order. Flags that are false are omitted. */
const HEADER_FLAGS = ["noPersist", "redDot", "syncOnce", "dup", "end"] as const;

type HeaderFlags = Partial<Readonly<Record<(typeof HEADER_FLAGS)[number], true>>>;

/**
 * Reason code of the `disconnect` that precedes a close, by close reason. 0 means that no
 * `disconnect` is sent. Clients treat `disconnect` as a kick and do not reconnect. A refused client
 * has already received the error, and a session that is replaced on the same device is not
 * notified.
 */
const DISCONNECT_REASONS = {
  draining: 0,
  slow_reader: 0,
  replaced: 0,
  rate_limited: 0,
  auth_timeout: 0,
  unavailable: 0,
  token_expired: 0,
  kicked: KICKED_REASON,
  auth_failed: 0,
  token_changed: KICKED_REASON,
  logged_out: KICKED_REASON,
  protocol_error: 0,
  goodbye: 0,
  banned: BANNED_REASON,
} as const satisfies Record<CloseReason, number>;

interface EchoedFields {
  readonly header: HeaderFlags | undefined;
  /** Client time in a connect, in Unix milliseconds. 0 if the connect has no time. */
  readonly clientTimestamp: number;
}

function headerFlags(isSet: (flag: string) => boolean): HeaderFlags | undefined {
  const setFlags = HEADER_FLAGS.filter(isSet);
  if (setFlags.length === 0) return undefined;
  return Object.fromEntries(setFlags.map((flag) => [flag, true]));
}

function wukongimResult(
  reply: Reply,
  { header, clientTimestamp }: EchoedFields,
): object | undefined {
  switch (reply.kind) {
    case "connack":
      return {
        serverVersion: reply.version,
        timeDiff: reply.serverTimeMs - clientTimestamp || undefined,
        reasonCode: SUCCESS_REASON,
        nodeId: nodeNumber(reply.nodeId),
      };
    case "sendack": {
      const { messageSeq } = reply;
      const messageId = String(reply.messageId);
      return { header, messageId, messageSeq, reasonCode: SUCCESS_REASON };
    }
    case "error": {
      const reasonCode = reasonOf(reply.code);
      return { header, messageId: "0", messageSeq: 0, reasonCode };
    }
    case "pong":
      return {};
    default:
      return undefined;
  }
}

function encodeWukongim(push: Push): Frames {
  switch (push.kind) {
    case "message":
      return recvNotification(push.channel, push.message, push);
    case "messages":
      return push.messages.map((message) =>
        recvNotification(push.channel, message, { isOwn: message.fromUid === push.toUid }),
      );
    case "command":
      return recvNotification(push.channel, push.message, { ...push, isCommand: true });
    case "event": {
      const event = clientEvent(push.event);
      return event === undefined ? [] : eventNotification(event);
    }
    case "stream":
      return snapshotEvents(push.snapshot).map(eventNotification);
    case "disconnect": {
      const reasonCode = DISCONNECT_REASONS[push.reason];
      const reason = CLOSE_REASONS[push.reason].message;
      return reasonCode === 0 ? [] : notification("disconnect", { reasonCode, reason });
    }
    case "conversation":
    case "presence":
      return [];
  }
}

function recvNotification(
  channel: ChannelRef,
  message: Message,
  { isCommand = false, isOwn = false }: { isCommand?: boolean; isOwn?: boolean } = {},
): string {
  const { noPersist, redDot, syncOnce } = message.header;
  const { topic = "", setting = 0 } = message.passthrough ?? {};
  const isStream = message.stream?.state === "active";
  return notification("recv", {
    header: {
      noPersist: noPersist || undefined,
      redDot: (redDot && !isOwn) || undefined,
      syncOnce: isCommand || syncOnce || undefined,
    },
    setting:
      isStream || setting !== 0 || topic !== ""
        ? {
            receipt: (setting & RECEIPT_BIT) !== 0 || undefined,
            signal: (setting & SIGNAL_BIT) !== 0 || undefined,
            stream: isStream || undefined,
            topic: topic !== "" || undefined,
          }
        : undefined,
    expire: message.expireS || undefined,
    messageId: String(message.messageId),
    messageSeq: message.messageSeq,
    clientMsgNo: message.clientMsgNo || undefined,
    streamNo: message.streamNo,
    timestamp: Math.floor(message.timestampMs / 1000),
    channelId: channel.id,
    channelType: channel.type,
    topic: topic || undefined,
    fromUid: message.fromUid === SYSTEM_UID ? "" : message.fromUid,
    payload: base64(message.payload),
  });
}

function eventNotification({ id, type, timestampMs: timestamp, data }: ClientEvent) {
  return notification("event", { id, type, timestamp, data });
}
