// A stand-in for a server of WuKongIM 2.2.5, for tests of `jindou import`. Its rows were captured
// from a real server (goldens/import.json), and it pages through them as that server does. Each
// page has few rows, so that every listing has several pages.

import { readFileSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { text as readAll } from "node:stream/consumers";
import type { Test } from "tap";
import { usersOf } from "../../../src/compat/wukongim/stored-id.ts";
import { FakeMessages } from "./import-messages.ts";

interface Exchange {
  readonly name: string;
  readonly request: { readonly method: string; readonly path: string; readonly body?: string };
  readonly response: { readonly status: number; readonly body: string };
}

/**
 * A row of a listing as text, because JavaScript cannot represent its numbers of 19 digits exactly.
 */
interface Row {
  readonly text: string;
  readonly createdAt: bigint;
}

export const EXCHANGES: readonly Exchange[] = JSON.parse(
  readFileSync(new URL("goldens/import.json", import.meta.url), "utf8"),
);

const LOGGED_ROWS = rowsOf(/^channels that have messages \(node 1\): page \d/);
const DEVICES = rowsOf(/^devices: page \d/);
const USERS = rowsOf(/^users: page \d/);
const CHANNELS = rowsOf(/^channels: page \d/);
const CONVERSATIONS = rowsOf(/^conversations: page \d/);
const LISTED = LOGGED_ROWS.map(({ text }) => JSON.parse(text))
  .filter(({ channel_id: id }) => !id.endsWith("____cmd"))
  .map(({ channel_id: id, channel_type: type, last_message_seq: lastSeq }) => ({
    ...{ id, type, lastSeq },
  }));
/** Maximum number of rows of a page, even if `limit` is higher. */
const MAX_ROWS = 4;

export interface FakeSource {
  readonly url: string;
  readonly requests: readonly IncomingMessage[];
  /** Highest number of requests that were answered at the same time. */
  readonly maxConcurrent: number;
  /** Returns a reply that replaces the usual reply, or `undefined` to send the usual reply. */
  override: ((path: string) => Reply | undefined) | undefined;
  /** Messages that the stand-in returns. A test may add messages. */
  readonly messages: FakeMessages;
}

interface Reply {
  readonly status: number;
  readonly body: string;
}

export async function startSource(t: Test, token = ""): Promise<FakeSource> {
  const requests: IncomingMessage[] = [];
  const messages = new FakeMessages(EXCHANGES, LISTED);
  const source = {
    ...{ url: "", requests, maxConcurrent: 0, messages },
    override: undefined as FakeSource["override"],
  };
  let concurrent = 0;
  const server = createServer(async (request: IncomingMessage, response: ServerResponse) => {
    requests.push(request);
    concurrent += 1;
    source.maxConcurrent = Math.max(source.maxConcurrent, concurrent);
    response.once("close", () => {
      concurrent -= 1;
    });
    const isAllowed = token === "" || request.headers.token === token;
    const path = request.url ?? "";
    const body = request.method === "POST" ? await readAll(request) : "";
    const reply = source.override?.(path) ?? replyTo(path, body, messages);
    const { status, body: text } = isAllowed ? reply : { status: 401, body: "" };
    // The response is sent one turn of the event loop later, so that requests overlap.
    setImmediate(() => response.writeHead(status).end(text));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.teardown(() => server.close());
  source.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return source;
}

/** Returns the reply to a call. */
export function replyTo(
  path: string,
  body = "",
  messages = new FakeMessages(EXCHANGES, LISTED),
): Reply {
  const { pathname, searchParams: query } = new URL(path, "http://source");
  switch (pathname) {
    case "/cluster/devices":
      return pageByCreation(DEVICES, query);
    case "/cluster/users":
      return pageByCreation(USERS, query);
    case "/cluster/channels":
      return pageByCreation(CHANNELS, query);
    case "/cluster/nodes/1/channels":
      return pageByCreation(loggedRows(messages), query);
    case "/cluster/conversations":
      return pageByNumber(CONVERSATIONS, query);
    case "/channel/messagesync":
      return { status: 200, body: messages.page(body) };
    case "/conversation/sync":
      return { status: 200, body: JSON.stringify(conversationsOf(JSON.parse(body), messages)) };
    case "/cluster/logs":
      return logReply(query);
    case "/channel/whitelist":
      return captured(
        "allowlist of a group whose id has a slash: the API port takes it in the query",
      );
    case "/cluster/nodes":
      return captured("nodes");
    case "/user/systemuids":
      return captured("system accounts");
    default:
      return membersReply(pathname);
  }
}

function membersReply(pathname: string): Reply {
  if (!/^\/cluster\/channels\/[^/]+\/\d+\/(subscribers|denylist|allowlist)$/.test(pathname))
    return { status: 404, body: "" };
  if (pathname.includes("%2F")) return { status: 404, body: "" };
  const exchange = EXCHANGES.find(({ request }) => request.path.startsWith(`${pathname}?`));
  return exchange?.response ?? { status: 200, body: "[]" };
}

/** Returns the listing of the channels with a log, with their current newest seqs. */
function loggedRows(messages: FakeMessages): readonly Row[] {
  return LOGGED_ROWS.map(({ text, createdAt }) => {
    const { channel_id: id, channel_type: type } = JSON.parse(text);
    if (id.endsWith("____cmd") || type > 2) return { text, createdAt };
    const last = messages.of(id, type).at(-1)?.message_seq ?? 0;
    return {
      text: text.replace(/"last_message_seq":\d+/, `"last_message_seq":${last}`),
      createdAt,
    };
  });
}

/** Seq through which a user has deleted the messages, by uid and stored channel id. */
const DELETIONS: Readonly<Record<string, number>> = { "kim club": 4 };

/**
 * Returns the conversations of a user in the reply to `/conversation/sync`. As in WuKongIM,
 * messages before the user's own newest message do not count as unread, and the list is empty if
 * `msg_count` is 0.
 */
function conversationsOf(
  { uid, msg_count: count }: { readonly uid: string; readonly msg_count: number },
  messages: FakeMessages,
) {
  if (count === 0) return [];
  return CONVERSATIONS.flatMap(({ text }) => {
    const row = JSON.parse(text);
    if (row.uid !== uid || row.type !== 0) return [];
    const rows = messages.of(row.channel_id, row.channel_type);
    const last = rows.at(-1)?.message_seq ?? 0;
    const own = rows.findLast(({ from_uid: from }) => from === uid)?.message_seq ?? 0;
    const pair = row.channel_type === 1 ? usersOf(row.channel_id) : undefined;
    const peer = pair?.uid === uid ? pair.peer : (pair?.uid ?? row.channel_id);
    const deleted = DELETIONS[`${uid} ${row.channel_id}`] ?? 0;
    if (last === 0 || deleted >= last) return [];
    const unread = Math.max(0, last - Math.max(row.readed_to_msg_seq, own));
    const shown = rows.filter(({ message_seq: seq }) => seq > deleted);
    const recents = shown.slice(-count).toReversed();
    const channel = { channel_id: peer, channel_type: row.channel_type };
    return [{ ...channel, unread, last_msg_seq: last, recents }];
  });
}

const SLOT_LOGS = new Map([
  ["36", /^log of the slot of quiet/],
  ["24", /^log of the slot of kim/],
]);

/**
 * Returns a page of a slot's log. Only the logs of two slots were captured, and the others are
 * empty here.
 */
function logReply(query: URLSearchParams): Reply {
  const name = SLOT_LOGS.get(query.get("slot") ?? "");
  const next = query.get("next");
  const exchange = EXCHANGES.filter((each) => name?.test(each.name)).find(({ request }) =>
    next === null ? !request.path.includes("next=") : request.path.endsWith(`next=${next}`),
  );
  return exchange?.response ?? { status: 200, body: '{"next":0,"more":0,"logs":[]}' };
}

/**
 * Returns a page of rows, newest first. With `pre=1`, the rows are newer than the offset.
 * Otherwise, they are older.
 */
function pageByCreation(rows: readonly Row[], query: URLSearchParams): Reply {
  const limit = Math.min(Number(query.get("limit") ?? 20), MAX_ROWS);
  const offset = query.get("offset_created_at");
  const at = offset === null ? undefined : BigInt(offset);
  const newestFirst = rows.toSorted((a, b) => Number(b.createdAt - a.createdAt));
  if (query.get("pre") === "1") {
    const newer = newestFirst.filter(({ createdAt }) => createdAt > (at ?? 0n));
    return page(newer.slice(-limit), newer.length > limit);
  }
  const older = newestFirst.filter(({ createdAt }) => at === undefined || createdAt < at);
  return page(older.slice(0, limit), older.length > limit);
}

function pageByNumber(rows: readonly Row[], query: URLSearchParams): Reply {
  const limit = Math.min(Number(query.get("limit") ?? 20), MAX_ROWS);
  const start = (Number(query.get("current_page")) - 1) * limit;
  const body = rows.slice(start, start + limit).map(({ text }) => text);
  return { status: 200, body: `{"total":0,"data":[${body.join(",")}]}` };
}

function page(rows: readonly Row[], hasMore: boolean): Reply {
  const body = rows.map(({ text }) => text).join(",");
  return { status: 200, body: `{"total":0,"more":${hasMore ? 1 : 0},"data":[${body}]}` };
}

function captured(name: string): Reply {
  const exchange = EXCHANGES.find((one) => one.name === name);
  if (exchange === undefined) throw new Error(`no exchange is named ${name}`);
  return exchange.response;
}

/** Returns the rows of the captured pages, without the objects that contain them. */
function rowsOf(name: RegExp): readonly Row[] {
  return EXCHANGES.filter((exchange) => name.test(exchange.name)).flatMap(({ response }) =>
    [...response.body.matchAll(/\{"(?:id|channel_id)":(?:"(?:[^"\\]|\\.)*"|[^{}"])+\}/g)].map(
      ([text]) => ({ text, createdAt: BigInt(/"created_at":(\d+)/.exec(text)?.[1] ?? "0") }),
    ),
  );
}
