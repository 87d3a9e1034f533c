// Reads the listings of a WuKongIM server page by page. Each listing is paginated differently. A
// row with an unexpected form is an error and is not skipped.

import { GROUP_CHANNEL, isId } from "../../../broker/model.ts";
import { isRecord, MAIN_LANE } from "../stream-lane.ts";
import { type Source, SourceError } from "./source.ts";

/** Suffix of the id of a channel that stores another channel's commands. */
export const COMMAND_SUFFIX = "____cmd";
/** Highest device flag that Jindou supports: 0 app, 1 web, 2 desktop. */
export const MAX_DEVICE_FLAG = 2;
const PAGE_SIZE = 1000;
/**
 * Offset that is lower than the `created_at` of every row. With this offset, pages are ordered from
 * old to new, and new rows come last.
 */
const FIRST = "1";

type Row = Readonly<Record<string, unknown>>;

interface SourceDevice {
  readonly uid: string;
  readonly flag: number;
  readonly level: 0 | 1;
  /** Token of the device, "" if the device was logged out. */
  readonly token: string;
}

export interface SourceChannel {
  /** Channel id. For a personal channel with messages, both uids joined by `@`. */
  readonly id: string;
  readonly type: number;
}

/** A channel that `/channel` or `/channel/info` created, with the flags in the listing. */
interface CreatedChannel extends SourceChannel {
  readonly ban: boolean;
  readonly disband: boolean;
}

export interface LoggedChannel extends SourceChannel {
  readonly lastSeq: number;
}

/** A message from `/channel/messagesync`, with the field names of that call. */
export interface SourceMessage {
  readonly message_idstr: string;
  readonly message_seq: number;
  readonly client_msg_no: string;
  /** Uid of the sender, "" if the system account sent the message. */
  readonly from_uid: string;
  readonly timestamp: number;
  readonly expire: number;
  readonly setting: number;
  readonly topic?: string;
  readonly payload: string;
  /** 1 if the message's stream has ended. */
  readonly end?: number;
  readonly stream_data?: string;
}

/** An entry of the log that WuKongIM keeps for one of its slots. */
interface LogEntry {
  readonly command: string;
  readonly data: Row;
}

export interface SourceConversation {
  readonly uid: string;
  readonly isCommand: boolean;
  /** Channel id. For a personal channel, both uids joined by `@`. */
  readonly channelId: string;
  readonly channelType: number;
  readonly lastSeq: number;
  readonly readSeq: number;
}

/** Yields devices, including those that were logged out. */
export async function* devices(source: Source): AsyncGenerator<SourceDevice> {
  for await (const row of rowsByCreation(source, "/cluster/devices"))
    yield {
      uid: text(row, "uid"),
      flag: number(row, "device_flag"),
      level: row.device_level === 1 ? 1 : 0,
      token: text(row, "token"),
    };
}

/** Yields the uids of users who ever had a token. */
export async function* users(source: Source): AsyncGenerator<string> {
  for await (const row of rowsByCreation(source, "/cluster/users")) yield text(row, "uid");
}

/** Yields channels that `/channel` or `/channel/info` created. */
export async function* createdChannels(source: Source): AsyncGenerator<CreatedChannel> {
  for await (const row of rowsByCreation(source, "/cluster/channels"))
    yield {
      id: text(row, "channel_id"),
      type: number(row, "channel_type"),
      ban: row.ban === 1,
      disband: row.disband === 1,
    };
}

export async function nodeIds(source: Source): Promise<readonly string[]> {
  const { data } = await page(source, "/cluster/nodes");
  return data.map(({ id }) => String(id));
}

/**
 * Yields a node's channels that have a log. The pages are read from new to old, because the server
 * omits rows in the other direction.
 */
export async function* loggedChannels(
  source: Source,
  nodeId: string,
): AsyncGenerator<LoggedChannel> {
  const path = `/cluster/nodes/${encodeURIComponent(nodeId)}/channels?limit=${PAGE_SIZE}`;
  for (let offset = ""; ; ) {
    const { data, hasMore } = await page(source, path + offset);
    for (const row of data)
      yield {
        id: text(row, "channel_id"),
        type: number(row, "channel_type"),
        lastSeq: number(row, "last_message_seq"),
      };
    const last = data.at(-1);
    if (!hasMore || last === undefined) return;
    offset = `&offset_created_at=${last.created_at}`;
  }
}

type UidList = "subscribers" | "denylist" | "allowlist";

/**
 * Returns true if the server can return this list of the channel. If the id contains `/`, only the
 * allowlist of a group can be read, because the paths of all other lists contain the id.
 */
export function isListed({ id, type }: SourceChannel, list: UidList): boolean {
  return isId(id) && (!id.includes("/") || (list === "allowlist" && type === GROUP_CHANNEL));
}

/**
 * Returns the members of a channel, or the uids on one of its lists. Must be called only if
 * `isListed` returns true.
 */
export async function membersOf(
  source: Source,
  { id, type }: SourceChannel,
  list: UidList = "subscribers",
): Promise<readonly string[]> {
  if (id.includes("/")) {
    const query = new URLSearchParams({ channel_id: id, channel_type: String(type) });
    const path = `/channel/whitelist?${query}`;
    const rows = (await source.get(path)) ?? [];
    if (!Array.isArray(rows) || !rows.every(isRecord)) throw unexpected(path);
    source.count(rows.length);
    return rows.map((row) => text(row, "uid"));
  }
  const path = `/cluster/channels/${encodeURIComponent(id)}/${type}/${list}`;
  return uidsIn(source, path, await source.get(path));
}

export async function systemUids(source: Source): Promise<readonly string[]> {
  const path = "/user/systemuids";
  return uidsIn(source, path, (await source.get(path)) ?? []);
}

/** Yields the conversations of all users. An empty page ends the listing. */
export async function* conversations(source: Source): AsyncGenerator<SourceConversation> {
  for (let pageNumber = 1; ; pageNumber++) {
    const path = `/cluster/conversations?limit=${PAGE_SIZE}&current_page=${pageNumber}`;
    const { data } = await page(source, path);
    if (data.length === 0) return;
    for (const row of data)
      yield {
        uid: text(row, "uid"),
        isCommand: number(row, "type") === 1,
        channelId: text(row, "channel_id"),
        channelType: number(row, "channel_type"),
        lastSeq: number(row, "last_msg_seq"),
        readSeq: number(row, "readed_to_msg_seq"),
      };
  }
}

const SLOTS = 64;

/** Yields the log entries of all slots. The entries of one slot are sorted newest first. */
export async function* logEntries(source: Source, nodeId: string): AsyncGenerator<LogEntry> {
  for (let slot = 0; slot < SLOTS; slot++) {
    const path = `/cluster/logs?node_id=${encodeURIComponent(nodeId)}&log_type=2&slot=${slot}&limit=${PAGE_SIZE}`;
    for (let offset = ""; ; ) {
      const reply = await source.get(path + offset);
      const { logs, next } = isRecord(reply) ? reply : {};
      if (!Array.isArray(logs) || !logs.every(isRecord)) {
        if (logs === null || logs === undefined) break; // the slot has no log
        throw unexpected(path);
      }
      source.count(logs.length);
      for (const entry of logs) {
        const data: unknown = JSON.parse(text(entry, "data") || "{}");
        if (isRecord(data)) yield { command: text(entry, "cmd"), data };
      }
      if (logs.length === 0 || typeof next !== "number" || next <= 1) break;
      offset = `&next=${next}`;
    }
  }
}

/** A channel in the form that `/channel/messagesync` expects. */
export interface ReadChannel {
  readonly channelId: string;
  readonly channelType: number;
  /** A user of the channel, or any uid for a group. */
  readonly loginUid: string;
}

/**
 * Returns up to `limit` messages, starting at `fromSeq`, or the newest messages if `fromSeq` is 0.
 * A page with fewer than `limit` messages is the last page. The channel must be in the listing of
 * channels with a log. If it is not, the call creates the channel on the server.
 */
export async function messagesOf(
  source: Source,
  { channelId, channelType, loginUid }: ReadChannel,
  fromSeq: number,
  limit: number,
): Promise<readonly SourceMessage[]> {
  const path = "/channel/messagesync";
  const reply = await source.post(path, {
    login_uid: loginUid,
    channel_id: channelId,
    channel_type: channelType,
    start_message_seq: fromSeq,
    end_message_seq: 0,
    pull_mode: 1,
    limit,
  });
  const messages = isRecord(reply) ? (reply.messages ?? []) : undefined;
  if (!Array.isArray(messages) || !messages.every(isRecord)) throw unexpected(path);
  source.count(messages.length);
  return messages.map((row) => ({
    message_idstr: text(row, "message_idstr"),
    message_seq: number(row, "message_seq"),
    client_msg_no: text(row, "client_msg_no"),
    from_uid: text(row, "from_uid"),
    timestamp: number(row, "timestamp"),
    expire: typeof row.expire === "number" ? row.expire : 0,
    setting: typeof row.setting === "number" ? row.setting : 0,
    ...(typeof row.topic === "string" && { topic: row.topic }),
    payload: text(row, "payload"),
    ...(row.end === 1 && { end: 1 }),
    ...streamTextOf(row),
  }));
}

/**
 * Returns the text of a stream in base64. If the message has no `stream_data`, this is the text of
 * the `main` lane.
 */
function streamTextOf({ stream_data: data, event_meta: meta }: Row): { stream_data?: string } {
  if (typeof data === "string") return { stream_data: data };
  const { events } = isRecord(meta) ? meta : {};
  if (!Array.isArray(events)) return {};
  const lane = events.filter(isRecord).find(({ event_key: key }) => key === MAIN_LANE);
  const { text: snapshot } = isRecord(lane?.snapshot) ? lane.snapshot : {};
  return typeof snapshot === "string"
    ? { stream_data: Buffer.from(snapshot).toString("base64") }
    : {};
}

/** Maximum number of conversations that `/conversation/sync` returns. */
export const MAX_CONVERSATIONS = 1000;
/** Number of messages that `recentsOf` requests for each conversation. */
export const MAX_RECENTS = 1000;

/** Number and first seq of the newest messages that a user sees in a conversation. */
interface Recents {
  readonly count: number;
  readonly firstSeq: number;
}

/**
 * Reads up to `MAX_RECENTS` of the newest messages that a user sees in each conversation, and
 * returns their number and their lowest seq, by the channel's `<type>:<id>`.
 */
export async function recentsOf(
  source: Source,
  uid: string,
): Promise<ReadonlyMap<string, Recents>> {
  const path = "/conversation/sync";
  const reply = await source.post(path, { uid, version: 0, msg_count: MAX_RECENTS });
  if (!Array.isArray(reply) || !reply.every(isRecord)) throw unexpected(path);
  return new Map(
    reply.map((row) => {
      const recents = row.recents ?? [];
      if (!Array.isArray(recents) || !recents.every(isRecord)) throw unexpected(path);
      source.count(1 + recents.length);
      const seqs = recents.map((message) => number(message, "message_seq"));
      const name = `${number(row, "channel_type")}:${text(row, "channel_id")}`;
      return [name, { count: seqs.length, firstSeq: Math.min(...seqs) }];
    }),
  );
}

/**
 * Returns a user's unread counts, by the channel's `<type>:<id>`. WuKongIM and Jindou both have the
 * call `/conversation/sync`. `count` is the number of messages to return for each conversation.
 * `count` must be 1 for WuKongIM, which returns an empty list if `count` is 0. `count` must be 0
 * for a node, because a node ends the list after 8 MiB of messages.
 */
export async function unreadOf(
  post: (body: object) => Promise<unknown>,
  uid: string,
  count: 0 | 1,
): Promise<ReadonlyMap<string, number>> {
  const reply = await post({ uid, version: 0, msg_count: count });
  if (!Array.isArray(reply) || !reply.every(isRecord)) throw unexpected("/conversation/sync");
  return new Map(
    reply.map((row) => [
      `${number(row, "channel_type")}:${text(row, "channel_id")}`,
      number(row, "unread"),
    ]),
  );
}

/** Yields rows from old to new. The server returns the rows of each page from new to old. */
async function* rowsByCreation(source: Source, path: string): AsyncGenerator<Row> {
  for (let offset = FIRST; ; ) {
    const query = `limit=${PAGE_SIZE}&pre=1&offset_created_at=${offset}`;
    const { data, hasMore } = await page(source, `${path}?${query}`);
    yield* data.toReversed();
    const newest = data[0];
    if (!hasMore || newest === undefined) return;
    offset = String(newest.created_at);
  }
}

async function page(source: Source, path: string) {
  const reply = await source.get(path);
  const { data, more } = isRecord(reply) ? reply : {};
  const rows = data ?? [];
  if (!isRecord(reply) || !Array.isArray(rows) || !rows.every(isRecord)) throw unexpected(path);
  source.count(rows.length);
  return { data: rows as readonly Row[], hasMore: more === 1 };
}

function uidsIn(source: Source, path: string, reply: unknown): readonly string[] {
  const isUids = (value: unknown): value is readonly string[] =>
    Array.isArray(value) && value.every((uid) => typeof uid === "string");
  if (!isUids(reply)) throw unexpected(path);
  source.count(reply.length);
  return reply;
}

function text(row: Row, field: string): string {
  const value = row[field];
  if (typeof value === "string") return value;
  throw unexpectedField(field);
}

function number(row: Row, field: string): number {
  const value = row[field];
  if (typeof value === "number") return value;
  throw unexpectedField(field);
}

function unexpected(path: string): SourceError {
  return new SourceError(
    `The reply to ${path} is not from a WuKongIM 2.2 server. Check the address in --from.`,
  );
}

function unexpectedField(field: string): SourceError {
  return new SourceError(
    `A row from the server has no valid ${field} field. Check that --from is the address of a WuKongIM 2.2 server.`,
  );
}
