// Formats the bodies of WuKongIM's webhooks: `msg.notify` for stored messages and commands,
// `msg.offline` for users who need a push notification, and `user.onlinestatus` for sessions that
// begin or end. Contains only pure functions.

import { gzipSync } from "node:zlib";
import type { Format, FormattedRequest, WebhookEvent } from "../../webhooks/formats.ts";

const SYSTEM_UID = "____system";
/** Bit of `setting` that is set if the message has a topic. */
const TOPIC_BIT = 0x08;
/** Node id in `msg.offline`. To a receiver, all nodes of a cluster are a single server. */
const SOURCE_ID = 1;
const OFFLINE = "msg.offline";

/**
 * Creates the format. A list of more than `compressAbove` users is compressed. If `compressAbove`
 * is 0, no list is compressed.
 */
export function createWukongimFormat(compressAbove: number): Format {
  return {
    types: [
      ...["message.stored", "message.unreached", "command.sent"],
      ...["session.opened", "session.closed"],
    ],

    groupOf({ type, data }) {
      // A message that has expired or was removed lacks the fields that the bodies need.
      if (data.gone === 1) return undefined;
      if (type === "message.stored" || type === "command.sent") return "msg.notify";
      // A request contains users of a single message: all of them, unless a batch ends between two
      // pages of users.
      if (type === "message.unreached") return `${OFFLINE} ${data.message_id}`;
      if (type === "session.opened" || type === "session.closed") return "user.onlinestatus";
      return undefined;
    },

    format(encoded) {
      const events = encoded.map(({ event }) => event);
      const [first] = events;
      if (first?.type === "message.unreached") return offlineRequest(first, events, compressAbove);
      const isMessage = first?.type === "message.stored" || first?.type === "command.sent";
      return isMessage
        ? requestOf("msg.notify", events.map(messageOf))
        : requestOf("user.onlinestatus", events.map(onlineStatusOf));
    },
  };
}

function requestOf(event: string, body: unknown): FormattedRequest {
  return { contentType: "application/json", body: JSON.stringify(body), query: { event } };
}

/**
 * Returns the `msg.offline` request for one message. Each event in `pages` contains some of the
 * message's users.
 */
function offlineRequest(
  first: WebhookEvent,
  pages: readonly WebhookEvent[],
  compressAbove: number,
): FormattedRequest {
  const uids = pages.flatMap(({ data }) => (Array.isArray(data.uids) ? data.uids : []));
  const isCompressed = compressAbove > 0 && uids.length > compressAbove;
  return requestOf(OFFLINE, {
    ...messageOf(first),
    from_uid: first.data.from_uid,
    to_uids: isCompressed ? [] : uids,
    ...(isCompressed && {
      compress: "gzip",
      compress_to_uids: gzipSync(JSON.stringify(uids)).toString("base64"),
    }),
    source_id: SOURCE_ID,
  });
}

/** Returns a message with WuKongIM's fields in WuKongIM's order. */
function messageOf({ timestamp, data }: WebhookEvent) {
  const { from_uid: fromUid, topic = "", payload = null } = data;
  const setting = Number(data.setting ?? 0);
  return {
    header: data.header ?? { no_persist: 0, red_dot: 0, sync_once: 0 },
    setting: topic === "" ? setting : setting | TOPIC_BIT,
    message_id: data.message_id,
    message_idstr: String(data.message_id),
    client_msg_no: data.client_msg_no ?? "",
    message_seq: data.message_seq,
    from_uid: fromUid === SYSTEM_UID ? "" : fromUid,
    channel_id: data.channel_id,
    channel_type: data.channel_type,
    ...(topic === "" ? {} : { topic }),
    expire: data.expire ?? 0,
    timestamp: data.timestamp ?? Math.floor(Date.parse(timestamp) / 1000),
    payload,
  };
}

/** Returns `uid-deviceFlag-online-connId-deviceOnlineCount-totalOnlineCount`. */
function onlineStatusOf({ type, data }: WebhookEvent): string {
  const { uid, device_flag: flag, conn_id: connectionId } = data;
  const online = type === "session.opened" ? 1 : 0;
  const { device_online_count: ofDevice, total_online_count: total } = data;
  return [uid, flag, online, connectionId, ofDevice, total].join("-");
}
