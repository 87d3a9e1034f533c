// The sessions that clients hold: ending one, on whichever node, and a page of this node's. State:
// none.

import { type Static, Type } from "typebox";
import type { DeviceFlag, SessionRecord } from "../broker/model.ts";
import type { Clock } from "../broker/ports.ts";
import type { Users } from "../broker/users.ts";
import { id, LABEL_PATTERN } from "./fields.ts";
import { jsonReply, okReply } from "./reply.ts";
import type { Outcome } from "./route.ts";

/** A session that this node serves. */
export interface LocalConnection {
  readonly session: SessionRecord;
  /** Unix milliseconds. */
  readonly sinceMs: number;
  readonly address: string;
  /** The wire format, and the version of its protocol. */
  readonly format: string;
  readonly version: number;
  /** Sent and not yet read by the client. */
  readonly pendingBytes: number;
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
  uid: Type.Optional(
    Type.String({ maxLength: 128, description: "A part of the user id" }),
  ),
  sort: Type.Optional(
    Type.Enum([...SORTS], {
      type: "string",
      default: "id",
      description: "id or uptime; with Desc in falling order",
    }),
  ),
  offset: Type.Optional(
    Type.Integer({ minimum: 0, maximum: MAX_OFFSET, default: 0 }),
  ),
  limit: Type.Optional(
    Type.Integer({ minimum: 1, maximum: MAX_PAGE, default: PAGE }),
  ),
});

export interface ConnectionParts {
  readonly users: Pick<Users, "kick">;
  /** Those of this node, in no order. */
  readonly connections: () => Iterable<LocalConnection>;
  readonly clock: Clock;
}

export function createConnectionCalls(parts: ConnectionParts) {
  const { users, connections, clock } = parts;
  return {
    kick({ uid, conn_id }: Static<typeof kickBody>): Outcome {
      return users.kick(uid, conn_id).then(okReply);
    },

    connz(query: Static<typeof connzQuery>) {
      const { uid = "", sort = "id", offset = 0, limit = PAGE } = query;
      const nowMs = clock();
      const found = [...connections()]
        .filter(({ session }) => session.uid.includes(uid))
        .sort(ORDERS[sort]);
      const page = found.slice(offset, offset + limit);
      const body = {
        connections: page.map((one) => connectionJson(one, nowMs)),
        now: new Date(nowMs).toISOString(),
        total: found.length,
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
  a.sessionId.length - b.sessionId.length ||
  (a.sessionId < b.sessionId ? -1 : 1);
const byUptime: Order = (a, b) => b.sinceMs - a.sinceMs || byId(a, b);

const ORDERS: Readonly<Record<Sort, Order>> = {
  id: byId,
  idDesc: (a, b) => byId(b, a),
  uptime: byUptime,
  uptimeDesc: (a, b) => byUptime(b, a),
};

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
    pending_bytes: one.pendingBytes,
    device: DEVICES[session.flag],
    device_flag: session.flag,
    device_level: session.level,
    device_id: session.deviceId,
    format: one.format,
    version: one.version,
    node_id: session.nodeId,
  };
}
