// HTTP bodies that a backend should never send, for every call that reads a body: wrong types,
// truncated, damaged, deeply nested or huge JSON, and invalid ids. Random bodies depend only on
// their seed.

import { Random } from "../support/random.ts";

type Fields = Readonly<Record<string, unknown>>;

/** A valid body for every call that reads a body, by path. */
export const RIGHT_BODIES: Readonly<Record<string, Fields | readonly string[]>> = {
  "/user/token": { uid: "u", token: "t", device_flag: 0, device_level: 1 },
  "/user/device_quit": { uid: "u", device_flag: 0 },
  "/user/onlinestatus": ["a", "b"],
  "/channel": {
    channel_id: "g",
    channel_type: 2,
    ban: 0,
    disband: 0,
    send_ban: 0,
    allow_stranger: 0,
    large: 0,
    client_events: 1,
    subscribers: ["a"],
  },
  "/channel/info": { channel_id: "g", channel_type: 2, ban: 0 },
  "/channel/subscriber_add": {
    channel_id: "g",
    channel_type: 2,
    subscribers: ["a"],
    reset: 0,
    temp_subscriber: 0,
  },
  "/channel/subscriber_remove": {
    channel_id: "g",
    channel_type: 2,
    subscribers: ["a"],
    temp_subscriber: 0,
  },
  "/channel/subscriber_remove_all": { channel_id: "h", channel_type: 2 },
  "/channel/delete": { channel_id: "h", channel_type: 2 },
  ...Object.fromEntries(
    ["blacklist", "whitelist"].flatMap((list) => [
      ...["add", "set", "remove"].map((name) => [
        `/channel/${list}_${name}`,
        { channel_id: "g", channel_type: 2, uids: ["a"] },
      ]),
      [`/channel/${list}_remove_all`, { channel_id: "g", channel_type: 2 }],
    ]),
  ),
  "/user/systemuids_add": { uids: ["a"] },
  "/user/systemuids_remove": { uids: ["a"] },
  "/stream/cancel": { channel_id: "g", channel_type: 2, client_msg_no: "s", uid: "a" },
  "/v1/sign": { path: "/v1/stream/a", access: "read", expires_in: 60, from_uid: "u" },
  "/webhooks": { url: "https://example.com/", types: ["message.*"], format: "standard" },
  "/webhooks/{id}/replay": { after: "oldest", before: "now", types: ["*"] },
  "/webhooks/{id}/secrets": { overlapS: 60 },
  "/conn/kick": { uid: "a", conn_id: "n-1" },
  "/message/sendbatch": {
    payload: "eyJ0eXBlIjoxfQ==",
    from_uid: "a",
    subscribers: ["b"],
    header: { no_persist: 0, red_dot: 1, sync_once: 0 },
  },
  "/channel/messagesync": {
    login_uid: "a",
    channel_id: "g",
    channel_type: 2,
    start_message_seq: 0,
    end_message_seq: 0,
    limit: 10,
    pull_mode: 1,
  },
  "/messages": {
    login_uid: "a",
    channel_id: "g",
    channel_type: 2,
    message_seqs: [1],
    message_ids: [1],
    client_msg_nos: ["c"],
  },
  "/message": { login_uid: "a", channel_id: "g", channel_type: 2, client_msg_no: "c" },
  "/message/sync": { uid: "a", limit: 10 },
  "/message/syncack": { uid: "a", last_message_seq: 1 },
  "/message/send": {
    payload: "eyJ0eXBlIjoxfQ==",
    from_uid: "a",
    channel_id: "g",
    channel_type: 2,
    header: { no_persist: 0, red_dot: 1, sync_once: 0 },
    client_msg_no: "c",
    stream_no: "s",
    expire: 0,
    tag_key: "k",
  },
  "/event": {
    client_msg_no: "c",
    channel_id: "g",
    channel_type: 2,
    from_uid: "a",
    event: { id: "e", type: "progress", data: "d", timestamp: 1 },
  },
  "/conversation/sync": {
    uid: "a",
    version: 0,
    last_msg_seqs: "g:2:1",
    msg_count: 1,
    only_unread: 0,
    exclude_channel_types: [1],
    page: 1,
    page_size: 10,
  },
  "/conversation/channels": { uid: "a" },
  "/conversation/syncByChannels": {
    uid: "a",
    channels: [{ channel_id: "g", channel_type: 2 }],
    msg_count: 1,
  },
  "/conversations/clearUnread": { uid: "a", channel_id: "g", channel_type: 2 },
  "/conversations/setUnread": {
    uid: "a",
    channel_id: "g",
    channel_type: 2,
    unread: 1,
  },
  "/conversations/delete": { uid: "a", channel_id: "g", channel_type: 2 },
  "/manager/login": { username: "admin", password: "wrong" },
  "/route/batch": ["a", "b"],
  "/events/feed": { feed: "off" },
};

/**
 * Fields that contain an id: the path of the call, and a function that returns a body with a given
 * id.
 */
export const ID_FIELDS: readonly (readonly [string, (id: string) => unknown])[] = [
  ["/user/token", (uid) => ({ uid, token: "t", device_flag: 0 })],
  ["/user/device_quit", (uid) => ({ uid, device_flag: 0 })],
  ["/user/onlinestatus", (uid) => ["a", uid]],
  ["/route/batch", (uid) => ["a", uid]],
  ["/channel", (id) => ({ channel_id: id, channel_type: 2 })],
  ["/channel", (uid) => group({ channel_id: "x", subscribers: [uid] })],
  ["/channel/info", (id) => group({ channel_id: id, ban: 1 })],
  ["/channel/subscriber_add", (id) => group({ channel_id: id, subscribers: ["a"] })],
  ["/channel/subscriber_add", (uid) => group({ subscribers: ["a", uid] })],
  ["/channel/subscriber_remove", (uid) => group({ subscribers: ["a", uid] })],
  ["/user/systemuids_add", (uid) => ({ uids: ["a", uid] })],
  ["/conn/kick", (uid) => ({ uid, conn_id: "n-1" })],
  ["/channel/blacklist_add", (uid) => group({ uids: [uid] })],
  ["/channel/messagesync", (id) => group({ channel_id: id })],
  ["/messages", (id) => group({ channel_id: id })],
  ["/message", (id) => group({ channel_id: id, client_msg_no: "c" })],
  ["/message/sync", (uid) => ({ uid })],
  ["/message/syncack", (uid) => ({ uid, last_message_seq: 1 })],
  ["/message/sendbatch", (uid) => ({ ...batch(), from_uid: uid })],
  ["/message/send", (uid) => ({ ...message(), from_uid: uid })],
  ["/message/send", (id) => ({ ...message(), channel_id: id })],
  ["/message/send", (id) => ({ ...message(), channel_id: id, channel_type: 1 })],
  // an empty `from_uid` of an event means the system uid, which is valid
  ["/event", (uid) => ({ ...event(), from_uid: uid || "@" })],
  ["/event", (id) => ({ ...event(), channel_id: id })],
  ["/conversation/sync", (uid) => ({ uid })],
  ["/conversation/channels", (uid) => ({ uid })],
  ["/conversation/syncByChannels", (id) => ({ uid: "a", channels: [group({ channel_id: id })] })],
  ["/conversations/clearUnread", (uid) => conversation({ uid })],
  ["/conversations/delete", (id) => conversation({ channel_id: id })],
  ["/conversations/setUnread", (uid) => conversation({ uid, channel_type: 1, unread: 0 })],
];

const event = () => RIGHT_BODIES["/event"];
const conversation = (fields: Fields) => group({ uid: "a", ...fields });

const group = (fields: Fields) => ({
  channel_id: "g",
  channel_type: 2,
  ...fields,
});
const batch = () => RIGHT_BODIES["/message/sendbatch"];
const message = () => RIGHT_BODIES["/message/send"];

/**
 * Returns true if the call may serve the body: clients write null for optional fields that they do
 * not set, and a `version` far in the future counts as 0 [decisions: Values that clients really
 * send].
 */
export function mayBeServed(body: string | Uint8Array): boolean {
  if (typeof body !== "string") return false;
  try {
    const parsed = JSON.parse(body) as unknown;
    if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) return false;
    const { version } = parsed as Fields;
    const isFar = typeof version === "number" && version > Number.MAX_SAFE_INTEGER;
    return isFar || /:null[,}]/.test(body);
  } catch {
    return false;
  }
}

/** Invalid ids. Each breaks a different rule [decisions: Limits]. */
export const FORBIDDEN_IDS: readonly string[] = [
  "",
  "x".repeat(129),
  "\ud800",
  "a\udfff",
  ...["@", "#", "&"].map((sign) => `a${sign}b`),
  ...Array.from({ length: 0x20 }, (_, code) => `a${String.fromCharCode(code)}`),
  ...Array.from({ length: 0x21 }, (_, i) => `${String.fromCharCode(0x7f + i)}a`),
];

const KINDS = [
  "null",
  "true",
  "0",
  '""',
  "-1e999",
  "[[]]",
  "[null]",
  "[{}]",
  '{"length":1}',
  "{}",
  "",
  "\u0000",
  "NaN",
  "\ufeff{}",
];
const VALUES: readonly unknown[] = [
  null,
  true,
  1.5,
  -7,
  1e21,
  2 ** 53,
  {},
  [[]],
  [null],
  [{}],
  { toString: 1 },
];
const DEEP = `${"[".repeat(100_000)}${"]".repeat(100_000)}`;
const NESTED = `${'{"a":'.repeat(50_000)}1${"}".repeat(50_000)}`;

/**
 * Yields invalid bodies of `path`. A call must refuse each of them unless `mayBeServed` returns
 * true.
 */
export function* wrongBodies(path: string): Iterable<string | Uint8Array> {
  const right = RIGHT_BODIES[path] ?? {};
  yield* KINDS;
  yield* [DEEP, NESTED, `{"uid":${DEEP}}`, `[${DEEP}]`];
  const valid = Buffer.from(JSON.stringify(right));
  for (const end of valid.keys()) yield valid.subarray(0, end);
  yield Buffer.concat([valid, valid]);
  yield Buffer.concat([valid, Buffer.from([0])]);
  yield Buffer.from(JSON.stringify(right), "utf16le");
  for (const name of Object.keys(right))
    for (const value of VALUES)
      if (name !== "header" || !isPlainObject(value))
        yield JSON.stringify(replaced(right, name, value));
}

/**
 * Returns true for a plain object. A plain object is a valid header, because unknown fields are
 * ignored.
 */
function isPlainObject(value: unknown): boolean {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function replaced(right: Fields | readonly string[], name: string, value: unknown) {
  if (Array.isArray(right)) return right.with(Number(name), value);
  return { ...right, [name]: value };
}

/** Returns a valid body with some bytes changed. */
export function damagedBody(path: string, seed: number): Uint8Array {
  const random = new Random(seed);
  const bytes = Buffer.from(JSON.stringify(RIGHT_BODIES[path]));
  for (let i = 0; i <= random.below(4); i++) bytes[random.below(bytes.length)] = random.below(256);
  return bytes;
}

/**
 * Returns `fields` as JSON with additional keys that would change the prototype of all objects in a
 * server that merges objects carelessly.
 */
export function polluting(fields: Fields): string {
  const poison = JSON.stringify({
    ban: 1,
    send_ban: 1,
    no_persist: 1,
    reset: 1,
  });
  const keys = `"__proto__":${poison},"constructor":{"prototype":${poison}},"prototype":${poison}`;
  return `{${keys},${JSON.stringify(fields).slice(1)}`;
}
