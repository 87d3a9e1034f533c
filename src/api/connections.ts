// Endpoints that end a session on any node and list this node's open or closed sessions in pages.

import { type Static, Type } from "typebox";
import type { DeviceFlag, DeviceLevel, SessionRecord } from "../broker/model.ts";
import type { Clock } from "../broker/ports.ts";
import { connectionNumber } from "../broker/session-names.ts";
import type { Users } from "../broker/users.ts";
import { TimeSlice } from "../lib/time-slice.ts";
import type { HttpReply } from "../transport/types.ts";
import { errorReply } from "./errors.ts";
import { id, LABEL_PATTERN } from "./fields.ts";
import { jsonReply, okReply } from "./reply.ts";
import type { Outcome } from "./route.ts";

export interface LocalSession {
  readonly uid: string;
  connection(): LocalConnection | undefined;
}

export interface LocalConnection {
  readonly session: SessionRecord;
  readonly sinceMs: number;
  readonly address: string;
  readonly listener: string;
  readonly format: string;
  readonly version: number;
  /** False if the client has reported that it is in the background. */
  readonly isForeground: boolean;
  pendingBytes(): number;
}

/** A session that has ended, or a connect that was refused. */
export interface ClosedConnection {
  readonly isRefused: boolean;
  readonly sessionId: string;
  readonly uid: string;
  readonly flag: DeviceFlag;
  readonly level: DeviceLevel;
  readonly deviceId: string;
  readonly address: string;
  readonly listener: string;
  readonly format: string;
  readonly version: number;
  readonly sinceMs: number;
  readonly endedMs: number;
  readonly reason: string;
  readonly message: string;
  readonly code: number;
  /** Code of the error with which a connect was refused. */
  readonly error: string | undefined;
  /** Origin of the web page whose handshake was refused. */
  readonly origin?: string;
}

const PAGE_SIZE = 20;
const MAX_PAGE_SIZE = 1000;
const MAX_OFFSET = 10_000_000;
const OPEN_SORTS = ["id", "idDesc", "uptime", "uptimeDesc"] as const;
const CLOSED_SORTS = ["end", "endDesc", "uptime", "uptimeDesc"] as const;
const SORTS = [...OPEN_SORTS, "end", "endDesc"] as const;
type OpenSort = (typeof OPEN_SORTS)[number];
type ClosedSort = (typeof CLOSED_SORTS)[number];

export const kickBody = Type.Object(
  {
    uid: id("User of the session"),
    conn_id: Type.Union(
      [
        Type.String({ pattern: LABEL_PATTERN }),
        Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER }),
      ],
      {
        description:
          "Id of the session (`session_id` in /user/devices, `id` in /connz), or its number (`conn_id` in /connz)",
      },
    ),
  },
  {
    title: "KickRequest",
    description: "Session to end",
    examples: [{ uid: "alice", conn_id: "n1-1" }],
  },
);

function filter(field: string, note = "") {
  return Type.Optional(
    Type.String({ maxLength: 128, description: `Text that the ${field} must contain${note}` }),
  );
}

export const connzQuery = Type.Object({
  state: Type.Optional(
    Type.Enum(["open", "closed"], {
      type: "string",
      description:
        "open or absent: this node's sessions. closed: the sessions that ended on this node and the connects that it refused within the last 24 hours, at most client.keepClosed of each",
    }),
  ),
  uid: filter("user id"),
  ip: filter("address of the client"),
  client: filter("device type, device id, listener or wire format"),
  reason: filter("close reason", ". Applies only to closed sessions"),
  sort: Type.Optional(
    Type.Enum([...SORTS], {
      type: "string",
      description:
        "Sort key: uptime, id (only open sessions) or end (only closed sessions). The suffix Desc means descending order. Default: id for open sessions, endDesc for closed sessions",
    }),
  ),
  offset: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: MAX_OFFSET,
      description: "Number of sessions to skip. Absent means 0",
    }),
  ),
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: MAX_PAGE_SIZE,
      description: `Maximum number of sessions to return. Absent means ${PAGE_SIZE}`,
    }),
  ),
});

type ConnzQuery = Static<typeof connzQuery>;

export interface ConnectionPorts {
  readonly users: Pick<Users, "kick">;
  readonly nodeId: string;
  /**
   * Returns the sessions in no particular order. Sessions may begin and end during the iteration.
   */
  readonly localSessions: () => Iterable<LocalSession>;
  /**
   * Returns the closed sessions in no particular order. Sessions may be added during the iteration.
   */
  readonly closedSessions: () => Iterable<ClosedConnection>;
  readonly clock: Clock;
}

export function createConnectionCalls(ports: ConnectionPorts) {
  const { users, nodeId, localSessions, closedSessions, clock } = ports;

  function pageReply(
    connections: readonly object[],
    { total, nowMs }: { readonly total: number; readonly nowMs: number },
    { offset = 0, limit = PAGE_SIZE }: ConnzQuery,
  ): HttpReply {
    const now = new Date(nowMs).toISOString();
    return jsonReply(JSON.stringify({ node_id: nodeId, connections, now, total, offset, limit }));
  }

  async function openPage(query: ConnzQuery, sort: OpenSort): Promise<HttpReply> {
    const { uid = "", offset = 0, limit = PAGE_SIZE } = query;
    const slice = new TimeSlice();
    const candidates = new FirstItems(offset + limit, OPEN_ORDERS[sort]);
    let total = 0;
    for (const session of localSessions()) {
      if (slice.shouldYield()) await slice.yield();
      if (!session.uid.includes(uid)) continue;
      const connection = session.connection();
      if (connection === undefined || !isClientOf(connection, connection.session, query)) continue;
      total += 1;
      candidates.add(connection);
    }
    const page = await lastOf(candidates, offset, slice);
    const nowMs = clock();
    const rows = page.map((connection) => connectionJson(connection, nowMs));
    return pageReply(rows, { total, nowMs }, query);
  }

  async function closedPage(query: ConnzQuery, sort: ClosedSort): Promise<HttpReply> {
    const { uid = "", reason = "", offset = 0, limit = PAGE_SIZE } = query;
    const slice = new TimeSlice();
    const candidates = new FirstItems(offset + limit, CLOSED_ORDERS[sort]);
    let total = 0;
    for (const closed of closedSessions()) {
      if (slice.shouldYield()) await slice.yield();
      if (!closed.uid.includes(uid) || !closed.reason.includes(reason)) continue;
      if (!isClientOf(closed, closed, query)) continue;
      total += 1;
      candidates.add(closed);
    }
    const page = await lastOf(candidates, offset, slice);
    const rows = page.map((closed) => closedJson(closed, nodeId));
    return pageReply(rows, { total, nowMs: clock() }, query);
  }

  return {
    kick({ uid, conn_id }: Static<typeof kickBody>): Outcome {
      return users.kick(uid, conn_id).then(okReply);
    },

    connz(query: ConnzQuery): Outcome {
      if (query.state === "closed") {
        const sort = CLOSED_SORTS.find((name) => name === (query.sort ?? "endDesc"));
        return sort === undefined ? wrongSort(CLOSED_SORTS, "closed") : closedPage(query, sort);
      }
      const sort = OPEN_SORTS.find((name) => name === (query.sort ?? "id"));
      return sort === undefined ? wrongSort(OPEN_SORTS, "open") : openPage(query, sort);
    },
  };
}

function wrongSort(sorts: readonly string[], state: string): HttpReply {
  const message = `must be one of ${sorts.join(", ")} for ${state} sessions`;
  return errorReply("bad_request", {
    message: `sort ${message}`,
    details: [{ path: "sort", message }],
  });
}

/** Returns true if the address and the client match the filters of the query. */
function isClientOf(
  { address, listener, format }: Pick<LocalConnection, "address" | "listener" | "format">,
  { flag, deviceId }: Pick<SessionRecord, "flag" | "deviceId">,
  { ip = "", client = "" }: ConnzQuery,
): boolean {
  if (!address.includes(ip)) return false;
  return (
    client === "" ||
    [DEVICES[flag], deviceId, listener, format].some((text) => text.includes(client))
  );
}

/**
 * Removes all items except the first `offset` from the heap. Returns the removed items in order.
 */
async function lastOf<Item>(
  items: FirstItems<Item>,
  offset: number,
  slice: TimeSlice,
): Promise<readonly Item[]> {
  const page: Item[] = [];
  while (items.size > offset) {
    if (slice.shouldYield()) await slice.yield();
    const item = items.removeLast();
    if (item !== undefined) page.push(item);
  }
  return page.reverse();
}

type Order<Item> = (a: Item, b: Item) => number;

/**
 * Orders by id. The session ids that a node assigns end with an increasing number, so a longer id
 * belongs to a later session.
 */
const byId: Order<LocalConnection> = ({ session: a }, { session: b }) =>
  a.sessionId.length - b.sessionId.length || (a.sessionId < b.sessionId ? -1 : 1);
const byUptime: Order<LocalConnection> = (a, b) => b.sinceMs - a.sinceMs || byId(a, b);

const OPEN_ORDERS: Readonly<Record<OpenSort, Order<LocalConnection>>> = {
  id: byId,
  idDesc: (a, b) => byId(b, a),
  uptime: byUptime,
  uptimeDesc: (a, b) => byUptime(b, a),
};

const byEnd: Order<ClosedConnection> = (a, b) => a.endedMs - b.endedMs;
const byDuration: Order<ClosedConnection> = (a, b) => durationOf(a) - durationOf(b) || byEnd(b, a);

const CLOSED_ORDERS: Readonly<Record<ClosedSort, Order<ClosedConnection>>> = {
  end: byEnd,
  endDesc: (a, b) => byEnd(b, a),
  uptime: byDuration,
  uptimeDesc: (a, b) => byDuration(b, a),
};

function durationOf({ sinceMs, endedMs }: ClosedConnection): number {
  return Math.max(0, Math.floor((endedMs - sinceMs) / 1000));
}

/** Heap of the first `count` items in the given order. Its top is the last of these items. */
class FirstItems<Item> {
  readonly #count: number;
  readonly #order: Order<Item>;
  readonly #heap: Item[] = [];

  constructor(count: number, order: Order<Item>) {
    this.#count = count;
    this.#order = order;
  }

  get size(): number {
    return this.#heap.length;
  }

  add(item: Item): void {
    const heap = this.#heap;
    const [last] = heap;
    if (heap.length >= this.#count) {
      if (last === undefined || this.#order(item, last) > 0) return;
      this.removeLast();
    }
    let at = heap.length;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      const above = heap[parent];
      if (above === undefined || this.#order(above, item) > 0) break;
      heap[at] = above;
      at = parent;
    }
    heap[at] = item;
  }

  removeLast(): Item | undefined {
    const heap = this.#heap;
    const [last] = heap;
    const moved = heap.pop();
    if (moved === undefined || heap.length === 0) return last;
    let at = 0;
    for (;;) {
      const child = this.#laterChild(at);
      const below = heap[child];
      if (below === undefined || this.#order(moved, below) > 0) break;
      heap[at] = below;
      at = child;
    }
    heap[at] = moved;
    return last;
  }

  #laterChild(at: number): number {
    const [leftIndex, rightIndex] = [2 * at + 1, 2 * at + 2];
    const [left, right] = [this.#heap[leftIndex], this.#heap[rightIndex]];
    if (left === undefined || right === undefined) return leftIndex;
    return this.#order(left, right) > 0 ? leftIndex : rightIndex;
  }
}

const DEVICES: Readonly<Record<DeviceFlag, string>> = {
  0: "app",
  1: "web",
  2: "desktop",
};

function connectionJson(connection: LocalConnection, nowMs: number) {
  const { session } = connection;
  return {
    id: session.sessionId,
    conn_id: connectionNumber(session.sessionId),
    uid: session.uid,
    ip: connection.address,
    listener: connection.listener,
    uptime: Math.max(0, Math.floor((nowMs - connection.sinceMs) / 1000)),
    pending_bytes: connection.pendingBytes(),
    device: DEVICES[session.flag],
    device_flag: session.flag,
    device_level: session.level,
    device_id: session.deviceId,
    format: connection.format,
    version: connection.version,
    foreground: connection.isForeground ? 1 : 0,
    node_id: session.nodeId,
  };
}

function closedJson(closed: ClosedConnection, nodeId: string) {
  return {
    id: closed.sessionId,
    conn_id: closed.sessionId === "" ? 0 : connectionNumber(closed.sessionId),
    uid: closed.uid,
    ip: closed.address,
    listener: closed.listener,
    uptime: durationOf(closed),
    pending_bytes: 0,
    device: DEVICES[closed.flag],
    device_flag: closed.flag,
    device_level: closed.level,
    device_id: closed.deviceId,
    format: closed.format,
    version: closed.version,
    node_id: nodeId,
    refused: closed.isRefused ? 1 : 0,
    ended: new Date(closed.endedMs).toISOString(),
    reason: closed.reason,
    message: closed.message,
    code: closed.code,
    ...(closed.error === undefined ? {} : { error: closed.error }),
    ...(closed.origin === undefined ? {} : { origin: closed.origin }),
  };
}
