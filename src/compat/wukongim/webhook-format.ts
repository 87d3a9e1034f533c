// The bodies of WuKongIM's webhooks: `msg.notify` for stored messages and commands, and
// `user.onlinestatus` for sessions that begin and end. Pure.

import type { Format, WebhookEvent } from "../../webhooks/formats.ts";

const SYSTEM_UID = "____system";

export const wukongimFormat: Format = {
  types: ["message.stored", "command.sent", "session.opened", "session.closed"],

  groupOf({ type }) {
    if (type === "message.stored" || type === "command.sent") return "msg.notify";
    if (type === "session.opened" || type === "session.closed") return "user.onlinestatus";
    return undefined;
  },

  format(events) {
    const [first] = events;
    const event = (first && wukongimFormat.groupOf(first)) ?? "";
    const items = event === "msg.notify" ? events.map(messageOf) : events.map(onlineStatusOf);
    return { contentType: "application/json", body: JSON.stringify(items), query: { event } };
  },
};

/** Returns a message with the fields of WuKongIM, in its order. */
function messageOf({ timestamp, data }: WebhookEvent) {
  const { from_uid: fromUid, topic = "", payload = null } = data;
  return {
    header: data.header ?? { no_persist: 0, red_dot: 0, sync_once: 0 },
    setting: data.setting ?? 0,
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
