// Converts request bodies from backends written for WuKongIM to the form that the schemas describe.
// Values that only WuKongIM accepts are replaced by values with the same effect.

import { type TSchema, Type } from "typebox";
import type { Adapt } from "../../api/body.ts";
import { MAX_TIME_MS } from "../../api/fields.ts";
import { GROUP_CHANNEL, isId, SYSTEM_UID } from "../../broker/model.ts";

type Fields = Readonly<Record<string, unknown>>;

/** Fields that are flags. The integer 1 sets the flag, and every other integer clears it. */
const FLAGS: ReadonlySet<string> = new Set([
  "ban",
  "disband",
  "send_ban",
  "allow_stranger",
  "large",
  "client_events",
  "reset",
  "temp_subscriber",
  "device_level",
  "no_persist",
  "red_dot",
  "sync_once",
  "only_unread",
  "pull_mode",
  "is_stream",
  "include_private",
]);

/** Fields whose integers are replaced by the nearest integer that the schema allows. */
const BOUNDED: ReadonlySet<string> = new Set([
  "version",
  "msg_count",
  "page",
  "page_size",
  "limit",
  "start_message_seq",
  "end_message_seq",
  "from_msg_event_seq",
]);

const UID_LISTS: ReadonlySet<string> = new Set(["subscribers", "uids"]);
/** Paths of calls that report invalid uids in their replies. */
const REPORTING: ReadonlySet<string> = new Set(["/message/send", "/message/sendbatch"]);
/** Paths of calls for which an empty list means all users, not none. */
const EMPTY_MEANS_ALL: ReadonlySet<string> = new Set(["/message/send", "/channel/whitelist_set"]);

interface Bounds {
  readonly minimum: number;
  readonly maximum: number;
}

/** Creates the body adapter for a call. `schema` is the schema of the call's bodies. */
export function createBodyAdapter(path: string, schema: TSchema | undefined): Adapt {
  const bounds = boundsIn(schema);
  const withDefaults = DEFAULTS.get(path);

  function fieldsOf(body: Fields): Fields {
    const fields: (readonly [string, unknown])[] = [];
    for (const [name, value] of Object.entries(body))
      if (value !== null) fields.push([name, convert(name, value)]);
    return Object.fromEntries(fields);
  }

  function convert(name: string, value: unknown): unknown {
    if (Number.isInteger(value)) {
      if (FLAGS.has(name)) return value === 1 ? 1 : 0;
      const { minimum, maximum } = bounds.get(name) ?? NO_BOUNDS;
      return Math.min(Math.max(Number(value), minimum), maximum);
    }
    if (Array.isArray(value)) return UID_LISTS.has(name) ? uidsIn(value) : value.filter(isPresent);
    return name === "header" && isRecord(value) ? headerOf(value) : value;
  }

  function uidsIn(list: readonly unknown[]): readonly unknown[] {
    const uids = list.filter(REPORTING.has(path) ? isPresent : isValidUid);
    return uids.length === 0 && EMPTY_MEANS_ALL.has(path) ? list : uids;
  }

  return (body) => {
    if (Array.isArray(body)) return body.filter(isValidUid);
    if (!isRecord(body)) return body;
    const fields = fieldsOf(body);
    return withDefaults?.(fields) ?? fields;
  };
}

const NO_BOUNDS: Bounds = { minimum: -Infinity, maximum: Infinity };

function boundsIn(schema: TSchema | undefined): ReadonlyMap<string, Bounds> {
  const properties = schema && Type.IsObject(schema) ? Object.entries(schema.properties) : [];
  const bounded = properties.filter(([name]) => BOUNDED.has(name));
  return new Map(bounded.map(([name, property]) => [name, { ...NO_BOUNDS, ...property }]));
}

function headerOf(header: Fields): Fields {
  const entries = Object.entries(header).filter(([, value]) => value !== null);
  return Object.fromEntries(
    entries.map(([name, value]) =>
      FLAGS.has(name) && Number.isInteger(value) ? [name, value === 1 ? 1 : 0] : [name, value],
    ),
  );
}

const DEFAULTS: ReadonlyMap<string, (body: Fields) => Fields> = new Map<
  string,
  (body: Fields) => Fields
>([
  ["/user/token", (body) => ({ device_flag: 0, ...body })],
  ["/user/device_quit", (body) => ({ device_flag: 0, ...body })],
  [
    "/message/send",
    ({ from_uid, subscribers, ...body }) => ({
      ...withMessage(isBlank(body.channel_id) ? withoutChannel(body) : body),
      from_uid: isBlank(from_uid) ? SYSTEM_UID : from_uid,
      ...(isEmpty(subscribers) ? {} : { subscribers }),
    }),
  ],
  ["/message/sendbatch", withMessage],
  ["/event", withEventTime],
  [
    "/channel/subscriber_add",
    (body) => (body.channel_type === 0 ? { ...body, channel_type: GROUP_CHANNEL } : body),
  ],
]);

function withoutChannel({ channel_id, channel_type, ...body }: Fields): Fields {
  return body;
}

/**
 * Removes a blank `client_msg_no`, and removes line breaks from the Base64 payload. Many encoders
 * insert line breaks, and Go's decoder ignores them.
 */
function withMessage({ client_msg_no, ...fields }: Fields): Fields {
  const { payload } = fields;
  const body = isBlank(client_msg_no) ? fields : { ...fields, client_msg_no };
  if (typeof payload !== "string" || !/[\r\n]/.test(payload)) return body;
  return { ...body, payload: payload.replaceAll(/[\r\n]/g, "") };
}

/**
 * Removes a timestamp that cannot be milliseconds. The event then gets the time at which it is
 * accepted.
 */
function withEventTime(body: Fields): Fields {
  const { event } = body;
  if (!isRecord(event) || !Number.isInteger(event.timestamp)) return body;
  const timeMs = Number(event.timestamp);
  if (timeMs >= 0 && timeMs <= MAX_TIME_MS) return body;
  const { timestamp, ...others } = event;
  return { ...body, event: others };
}

function isRecord(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isPresent(entry: unknown): boolean {
  return entry !== null;
}

/** Returns false for null and invalid uids. Other types pass, so that the schema rejects them. */
function isValidUid(entry: unknown): boolean {
  return typeof entry === "string" ? !isBlank(entry) && isId(entry) : isPresent(entry);
}

function isBlank(value: unknown): boolean {
  return value === undefined || (typeof value === "string" && value.trim() === "");
}

function isEmpty(value: unknown): boolean {
  return value === undefined || (Array.isArray(value) && value.length === 0);
}
