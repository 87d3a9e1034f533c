// Reply and Push → JSON text as WuKongIM's clients for JSON-RPC read it. No state. Field names,
// their order and what is left out are those of WuKongIM; what native can do beyond that has no
// form here.

import { CLOSE_REASONS, type CloseReason } from "../../broker/errors.ts";
import { type ChannelRef, type Message, SYSTEM_UID } from "../../broker/model.ts";
import type { Frames, Push, Reply } from "../protocol.ts";
import { KICKED_REASON, reasonOf, SUCCESS_REASON } from "../reason-codes.ts";
import {
  type ClientEvent,
  clientEvent,
  nodeNumber,
  RECEIPT_BIT,
  SIGNAL_BIT,
  snapshotEvents,
} from "../wukongim.ts";
import { base64, notification } from "./encode.ts";

/** Flags of a message's header in WuKongIM's order; those that are false are left out. */
const HEADER_FLAGS = ["noPersist", "redDot", "syncOnce", "dup", "end"] as const;

type HeaderFlags = Partial<Readonly<Record<(typeof HEADER_FLAGS)[number], true>>>;

/**
 * Whether a client is notified before the close: it takes any disconnect for a kick and does not
 * reconnect. One that is refused has its error, and a session that a newer one of the device
 * replaced ends silently.
 */
const IS_KICK = {
  draining: false,
  slow_reader: false,
  replaced: false,
  rate_limited: false,
  auth_timeout: false,
  unavailable: false,
  kicked: true,
  auth_failed: false,
  token_changed: true,
  logged_out: true,
  protocol_error: false,
  goodbye: false,
} as const satisfies Record<CloseReason, boolean>;

/** What must be known of a request to answer it. */
export interface Asked {
  /** Of a send: the flags that are set; undefined: none. */
  readonly header: HeaderFlags | undefined;
  /** Of a connect, Unix milliseconds; 0: not given. */
  readonly clientTimestamp: number;
}

/** The flags that `isSet` says; undefined: none. */
export function headerFlags(isSet: (flag: string) => boolean): HeaderFlags | undefined {
  const set = HEADER_FLAGS.filter(isSet);
  if (set.length === 0) return undefined;
  return Object.fromEntries(set.map((flag) => [flag, true]));
}

/** Undefined: nothing is answered. */
export function wukongimResult(
  reply: Reply,
  { header, clientTimestamp }: Asked,
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

export function encodeWukongim(push: Push): Frames {
  switch (push.kind) {
    case "message":
      return received(push.channel, push.message);
    case "messages":
      return push.messages.map((one) => received(push.channel, one));
    case "command":
      return received(push.channel, push.message, { isCommand: true });
    case "event":
      return eventOf(clientEvent(push.event));
    case "stream":
      return snapshotEvents(push.snapshot).map(eventOf);
    case "disconnect":
      return IS_KICK[push.reason]
        ? notification("disconnect", {
            reasonCode: KICKED_REASON,
            reason: CLOSE_REASONS[push.reason].message,
          })
        : [];
    case "conversation":
    case "presence":
      return [];
  }
}

/** `channel` as the receiver names it. Fields that are undefined are left out, the header never. */
function received(
  channel: ChannelRef,
  message: Message,
  { isCommand } = { isCommand: false },
): string {
  const { noPersist, redDot } = message.header;
  const { topic = "", setting = 0 } = message.passthrough ?? {};
  const isStream = message.stream?.state === "active";
  return notification("recv", {
    header: {
      noPersist: noPersist || undefined,
      redDot: redDot || undefined,
      syncOnce: isCommand || undefined,
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

function eventOf({ id, type, timestampMs: timestamp, data }: ClientEvent) {
  return notification("event", { id, type, timestamp, data });
}
