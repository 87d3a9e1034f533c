// The listings of a WuKongIM server, page by page. Each listing has its own way of paging. A row
// that is not as expected is an error and is not skipped.

import { isRecord } from "../stream-lane.ts";
import { type Source, SourceError } from "./source.ts";

const PAGE_SIZE = 1000;
/** Lower than the `created_at` of every row. Pages then go from old to new, so that new rows come last. */
const FIRST = "1";

type Row = Readonly<Record<string, unknown>>;

interface SourceDevice {
  readonly uid: string;
  readonly flag: number;
  /** "" if the device was logged out. */
  readonly token: string;
}

export interface SourceChannel {
  /** Both uids, joined by `@`, for a personal channel with messages. */
  readonly id: string;
  readonly type: number;
}

interface LoggedChannel extends SourceChannel {
  readonly lastSeq: number;
}

interface SourceConversation {
  readonly uid: string;
  readonly isCommand: boolean;
  readonly lastSeq: number;
  readonly readSeq: number;
}

/** Yields devices, also those that were logged out. */
export async function* devices(source: Source): AsyncGenerator<SourceDevice> {
  for await (const row of rowsByCreation(source, "/cluster/devices"))
    yield { uid: text(row, "uid"), flag: number(row, "device_flag"), token: text(row, "token") };
}

/** Yields the uids of users who ever had a token. */
export async function* users(source: Source): AsyncGenerator<string> {
  for await (const row of rowsByCreation(source, "/cluster/users")) yield text(row, "uid");
}

/** Yields channels that `/channel` or `/channel/info` created. */
export async function* createdChannels(source: Source): AsyncGenerator<SourceChannel> {
  for await (const row of rowsByCreation(source, "/cluster/channels"))
    yield { id: text(row, "channel_id"), type: number(row, "channel_type") };
}

export async function nodeIds(source: Source): Promise<readonly string[]> {
  const { data } = await page(source, "/cluster/nodes");
  return data.map(({ id }) => String(id));
}

/**
 * Yields the channels of a node that have a log. The pages go backwards, because the other
 * direction loses rows.
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

/** Returns the members of a channel. The server cannot list them if the id contains `/`. */
export async function membersOf(
  source: Source,
  { id, type }: SourceChannel,
): Promise<readonly string[]> {
  const path = `/cluster/channels/${encodeURIComponent(id)}/${type}/subscribers`;
  return uidsIn(source, path, await source.get(path));
}

export async function systemUids(source: Source): Promise<readonly string[]> {
  const path = "/user/systemuids";
  return uidsIn(source, path, (await source.get(path)) ?? []);
}

/** Yields the conversations of all users. The end of the listing is an empty page. */
export async function* conversations(source: Source): AsyncGenerator<SourceConversation> {
  for (let pageNumber = 1; ; pageNumber++) {
    const path = `/cluster/conversations?limit=${PAGE_SIZE}&current_page=${pageNumber}`;
    const { data } = await page(source, path);
    if (data.length === 0) return;
    for (const row of data)
      yield {
        uid: text(row, "uid"),
        isCommand: number(row, "type") === 1,
        lastSeq: number(row, "last_msg_seq"),
        readSeq: number(row, "readed_to_msg_seq"),
      };
  }
}

/** Yields rows from old to new. Each page is newest first. */
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
    `The answer to GET ${path} is not that of a WuKongIM 2.2 server. Check the address in --from.`,
  );
}

function unexpectedField(field: string): SourceError {
  return new SourceError(
    `A row of the server has no valid field ${field}. Check that it is a WuKongIM 2.2 server.`,
  );
}
