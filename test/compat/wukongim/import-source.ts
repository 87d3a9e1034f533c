// A stand-in for a server of WuKongIM 2.2.5, for tests of `jindou import`. Its rows are those that
// were captured from a real server (goldens/import.json), and it pages through them in the way of
// that server. Each page has few rows, so that every listing has several pages.

import { readFileSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { Test } from "tap";

interface Exchange {
  readonly name: string;
  readonly request: { readonly method: string; readonly path: string };
  readonly response: { readonly status: number; readonly body: string };
}

/** A row of a listing as text, because its numbers of 19 digits are not exact in JavaScript. */
interface Row {
  readonly text: string;
  readonly createdAt: bigint;
}

export const EXCHANGES: readonly Exchange[] = JSON.parse(
  readFileSync(new URL("goldens/import.json", import.meta.url), "utf8"),
);

const DEVICES = rowsOf(/^devices: page \d/);
const USERS = rowsOf(/^users: page \d/);
const CHANNELS = rowsOf(/^channels: page \d/);
const LOGGED = rowsOf(/^channels that have messages \(node 1\): page \d/);
const CONVERSATIONS = rowsOf(/^conversations: page \d/);
/** Maximum number of rows of a page, whatever `limit` says. */
const MAX_ROWS = 4;

export interface FakeSource {
  readonly url: string;
  readonly requests: readonly IncomingMessage[];
  /** Highest number of requests that were answered at the same time. */
  readonly maxConcurrent: number;
  /** Returns a reply instead of the usual one, `undefined` for the usual one. */
  override: ((path: string) => Reply | undefined) | undefined;
}

interface Reply {
  readonly status: number;
  readonly body: string;
}

export async function startSource(t: Test, token = ""): Promise<FakeSource> {
  const requests: IncomingMessage[] = [];
  const source = {
    ...{ url: "", requests, maxConcurrent: 0 },
    override: undefined as FakeSource["override"],
  };
  let concurrent = 0;
  const server = createServer((request: IncomingMessage, response: ServerResponse) => {
    requests.push(request);
    concurrent += 1;
    source.maxConcurrent = Math.max(source.maxConcurrent, concurrent);
    response.once("close", () => {
      concurrent -= 1;
    });
    const isAllowed = token === "" || request.headers.token === token;
    const path = request.url ?? "";
    const reply = source.override?.(path) ?? replyTo(path);
    const { status, body } = isAllowed ? reply : { status: 401, body: "" };
    // A turn of the event loop later, so that requests overlap.
    setImmediate(() => response.writeHead(status).end(body));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.teardown(() => server.close());
  source.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return source;
}

/** Returns the reply to GET. */
export function replyTo(path: string): Reply {
  const { pathname, searchParams: query } = new URL(path, "http://source");
  switch (pathname) {
    case "/cluster/devices":
      return pageByCreation(DEVICES, query);
    case "/cluster/users":
      return pageByCreation(USERS, query);
    case "/cluster/channels":
      return pageByCreation(CHANNELS, query);
    case "/cluster/nodes/1/channels":
      return pageByCreation(LOGGED, query);
    case "/cluster/conversations":
      return pageByNumber(CONVERSATIONS, query);
    case "/cluster/nodes":
      return captured("nodes");
    case "/user/systemuids":
      return captured("system accounts");
    default:
      return membersReply(pathname);
  }
}

function membersReply(pathname: string): Reply {
  if (!/^\/cluster\/channels\/[^/]+\/\d+\/subscribers$/.test(pathname))
    return { status: 404, body: "" };
  if (pathname.includes("%2F")) return { status: 404, body: "" };
  const exchange = EXCHANGES.find(({ request }) => request.path.startsWith(`${pathname}?`));
  return exchange?.response ?? { status: 200, body: "[]" };
}

/** `pre=1` selects the rows after the offset. The rows of each page are newest first. */
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
