// Calls about sessions: ending a session on any node, and listing the sessions of this node in
// pages.

import { type Static, Type } from "typebox";
import type { DeviceFlag, SessionRecord } from "../broker/model.ts";
import type { Clock } from "../broker/ports.ts";
import { connectionNumber } from "../broker/session-names.ts";
import type { Users } from "../broker/users.ts";
import { TimeSlice } from "../lib/time-slice.ts";
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
  pendingBytes(): number;
}

const PAGE_SIZE = 20;
const MAX_PAGE_SIZE = 1000;
const MAX_OFFSET = 10_000_000;
const SORTS = ["id", "idDesc", "uptime", "uptimeDesc"] as const;
type Sort = (typeof SORTS)[number];

export const kickBody = Type.Object(
  {
    uid: id("User of the session"),
    conn_id: Type.Union(
      [
        Type.String({ pattern: LABEL_PATTERN }),
        Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER }),
      ],
      {
        description: "Id of the session, from /user/devices or /connz, or its `conn_id` in /connz",
      },
    ),
  },
  {
    title: "KickRequest",
    description: "Session to end",
    examples: [{ uid: "alice", conn_id: "n1-1" }],
  },
);

export const connzQuery = Type.Object({
  uid: Type.Optional(
    Type.String({ maxLength: 128, description: "Text that the user id must contain" }),
  ),
  sort: Type.Optional(
    Type.Enum([...SORTS], {
      type: "string",
      description:
        "Sort key: id or uptime, with the suffix Desc for descending order. Absent means id",
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

export interface ConnectionPorts {
  readonly users: Pick<Users, "kick">;
  /** Sessions in no particular order. They may begin and end during the iteration. */
  readonly localSessions: () => Iterable<LocalSession>;
  readonly clock: Clock;
}

export function createConnectionCalls(ports: ConnectionPorts) {
  const { users, localSessions, clock } = ports;
  return {
    kick({ uid, conn_id }: Static<typeof kickBody>): Outcome {
      return users.kick(uid, conn_id).then(okReply);
    },

    async connz(query: Static<typeof connzQuery>) {
      const { uid = "", sort = "id", offset = 0, limit = PAGE_SIZE } = query;
      const slice = new TimeSlice();
      const candidates = new FirstConnections(offset + limit, ORDERS[sort]);
      let total = 0;
      for (const session of localSessions()) {
        if (slice.shouldYield()) await slice.yield();
        if (!session.uid.includes(uid)) continue;
        const connection = session.connection();
        if (connection === undefined) continue;
        total += 1;
        candidates.add(connection);
      }
      const page: LocalConnection[] = [];
      while (candidates.size > offset) {
        if (slice.shouldYield()) await slice.yield();
        const connection = candidates.removeLast();
        if (connection !== undefined) page.push(connection);
      }
      const nowMs = clock();
      const body = {
        connections: page.reverse().map((connection) => connectionJson(connection, nowMs)),
        now: new Date(nowMs).toISOString(),
        total,
        offset,
        limit,
      };
      return jsonReply(JSON.stringify(body));
    },
  };
}

type Order = (a: LocalConnection, b: LocalConnection) => number;

/** Orders by id. The ids of a node end with an increasing number, so a longer id is a later one. */
const byId: Order = ({ session: a }, { session: b }) =>
  a.sessionId.length - b.sessionId.length || (a.sessionId < b.sessionId ? -1 : 1);
const byUptime: Order = (a, b) => b.sinceMs - a.sinceMs || byId(a, b);

const ORDERS: Readonly<Record<Sort, Order>> = {
  id: byId,
  idDesc: (a, b) => byId(b, a),
  uptime: byUptime,
  uptimeDesc: (a, b) => byUptime(b, a),
};

/** Keeps the first `count` connections of an order in a heap, whose top is the last of them. */
class FirstConnections {
  readonly #count: number;
  readonly #order: Order;
  readonly #heap: LocalConnection[] = [];

  constructor(count: number, order: Order) {
    this.#count = count;
    this.#order = order;
  }

  get size(): number {
    return this.#heap.length;
  }

  add(connection: LocalConnection): void {
    const heap = this.#heap;
    const [last] = heap;
    if (heap.length >= this.#count) {
      if (last === undefined || this.#order(connection, last) > 0) return;
      this.removeLast();
    }
    let at = heap.length;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      const above = heap[parent];
      if (above === undefined || this.#order(above, connection) > 0) break;
      heap[at] = above;
      at = parent;
    }
    heap[at] = connection;
  }

  removeLast(): LocalConnection | undefined {
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
    node_id: session.nodeId,
  };
}
