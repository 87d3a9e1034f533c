// The sessions that clients hold: ending one, on whichever node, and a page of this node's. State:
// none.

import { type Static, Type } from "typebox";
import type { DeviceFlag, SessionRecord } from "../broker/model.ts";
import type { Clock } from "../broker/ports.ts";
import type { Users } from "../broker/users.ts";
import { TimeSlice } from "../lib/time-slice.ts";
import { id, LABEL_PATTERN } from "./fields.ts";
import { jsonReply, okReply } from "./reply.ts";
import type { Outcome } from "./route.ts";

/** A session that this node serves. */
export interface LocalSession {
  readonly uid: string;
  /** Undefined: it is ending. */
  connection(): LocalConnection | undefined;
}

export interface LocalConnection {
  readonly session: SessionRecord;
  /** Unix milliseconds. */
  readonly sinceMs: number;
  readonly address: string;
  /** The wire format, and the version of its protocol. */
  readonly format: string;
  readonly version: number;
  /** Sent and not yet read by the client. */
  pendingBytes(): number;
}

const PAGE = 20;
const MAX_PAGE = 1000;
const MAX_OFFSET = 10_000_000;
const SORTS = ["id", "idDesc", "uptime", "uptimeDesc"] as const;
type Sort = (typeof SORTS)[number];

export const kickBody = Type.Object(
  {
    uid: id("Whose session"),
    conn_id: Type.String({
      pattern: LABEL_PATTERN,
      description: "Its session id, from /user/devices or /connz",
    }),
  },
  {
    title: "KickRequest",
    examples: [{ uid: "alice", conn_id: "n1-1" }],
  },
);

export const connzQuery = Type.Object({
  uid: Type.Optional(Type.String({ maxLength: 128, description: "A part of the user id" })),
  sort: Type.Optional(
    Type.Enum([...SORTS], {
      type: "string",
      default: "id",
      description: "id or uptime; with Desc in falling order",
    }),
  ),
  offset: Type.Optional(Type.Integer({ minimum: 0, maximum: MAX_OFFSET, default: 0 })),
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_PAGE, default: PAGE })),
});

export interface ConnectionParts {
  readonly users: Pick<Users, "kick">;
  /** Of this node, in no order. Sessions may begin and end while it is iterated over. */
  readonly localSessions: () => Iterable<LocalSession>;
  readonly clock: Clock;
}

export function createConnectionCalls(parts: ConnectionParts) {
  const { users, localSessions, clock } = parts;
  return {
    kick({ uid, conn_id }: Static<typeof kickBody>): Outcome {
      return users.kick(uid, conn_id).then(okReply);
    },

    async connz(query: Static<typeof connzQuery>) {
      const { uid = "", sort = "id", offset = 0, limit = PAGE } = query;
      const slice = new TimeSlice();
      const first = new First(offset + limit, ORDERS[sort]);
      let total = 0;
      for (const session of localSessions()) {
        if (slice.isUsedUp()) await slice.rest();
        if (!session.uid.includes(uid)) continue;
        const one = session.connection();
        if (one === undefined) continue;
        total += 1;
        first.add(one);
      }
      const page: LocalConnection[] = [];
      while (first.size > offset) {
        if (slice.isUsedUp()) await slice.rest();
        const one = first.takeLast();
        if (one !== undefined) page.push(one);
      }
      const nowMs = clock();
      const body = {
        connections: page.reverse().map((one) => connectionJson(one, nowMs)),
        now: new Date(nowMs).toISOString(),
        total,
        offset,
        limit,
      };
      return jsonReply(JSON.stringify(body));
    },
  };
}

type Order = (one: LocalConnection, other: LocalConnection) => number;

/** Ids of a node count up: a longer one is later. */
const byId: Order = ({ session: a }, { session: b }) =>
  a.sessionId.length - b.sessionId.length || (a.sessionId < b.sessionId ? -1 : 1);
const byUptime: Order = (a, b) => b.sinceMs - a.sinceMs || byId(a, b);

const ORDERS: Readonly<Record<Sort, Order>> = {
  id: byId,
  idDesc: (a, b) => byId(b, a),
  uptime: byUptime,
  uptimeDesc: (a, b) => byUptime(b, a),
};

/** The first `count` connections in an order: a heap with the last of them on top. */
class First {
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

  add(one: LocalConnection): void {
    const heap = this.#heap;
    const [last] = heap;
    if (heap.length >= this.#count) {
      if (last === undefined || this.#order(one, last) > 0) return;
      this.takeLast();
    }
    let at = heap.length;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      const above = heap[parent];
      if (above === undefined || this.#order(above, one) > 0) break;
      heap[at] = above;
      at = parent;
    }
    heap[at] = one;
  }

  takeLast(): LocalConnection | undefined {
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
    const [left, right] = [2 * at + 1, 2 * at + 2];
    const [one, other] = [this.#heap[left], this.#heap[right]];
    if (one === undefined || other === undefined) return left;
    return this.#order(one, other) > 0 ? left : right;
  }
}

const DEVICES: Readonly<Record<DeviceFlag, string>> = {
  0: "app",
  1: "web",
  2: "desktop",
};

function connectionJson(one: LocalConnection, nowMs: number) {
  const { session } = one;
  return {
    id: session.sessionId,
    uid: session.uid,
    ip: one.address,
    uptime: Math.max(0, Math.floor((nowMs - one.sinceMs) / 1000)),
    pending_bytes: one.pendingBytes(),
    device: DEVICES[session.flag],
    device_flag: session.flag,
    device_level: session.level,
    device_id: session.deviceId,
    format: one.format,
    version: one.version,
    node_id: session.nodeId,
  };
}
