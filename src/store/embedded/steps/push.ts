// Implements the port's `PushStore`, whose data decides which users need a push notification.
// Stores the cursors. State: the token of the lease that claimed each cursor, and acknowledgements.
// This state is lost when the process ends.

import type { EventPosition } from "../../../broker/event-ports.ts";
import type { PushStore } from "../../../broker/push-ports.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import { fieldsOf, persist } from "../engine/database.ts";
import type { EventLog } from "../engine/event-log.ts";
import type { Tables } from "../engine/tables.ts";
import type { Conversations } from "./conversations.ts";
import type { EventOutbox } from "./event-outbox.ts";

const VERSION = 1;
/** Maximum number of messages whose acknowledgements are kept. */
const MAX_ACKNOWLEDGED = 50_000;
const NOBODY: ReadonlySet<string> = new Set();

interface PushPorts {
  readonly tables: Tables;
  readonly events: Pick<EventLog, "newest">;
  readonly outbox: Pick<EventOutbox, "transact">;
  readonly conversations: Pick<Conversations, "readSeqs">;
}

interface AcknowledgedMessage {
  readonly uids: Set<string>;
  /** Time at which the entry may be dropped, on the monotonic clock. */
  untilMs: number;
}

export function createPush({ tables, events, outbox, conversations }: PushPorts): PushStore {
  const acknowledged = new BoundedMap<string, AcknowledgedMessage>(MAX_ACKNOWLEDGED);

  const tokens = new Map<number, number>();

  function dropOld(nowMs: number): void {
    for (const [name, { untilMs }] of acknowledged) {
      if (untilMs > nowMs) return;
      acknowledged.delete(name);
    }
  }

  return {
    async readSeqs(key, uids) {
      return conversations.readSeqs(key, uids);
    },

    async addAcknowledged(messages, ttlMs) {
      const nowMs = performance.now();
      dropOld(nowMs);
      for (const { key, messageSeq, uids } of messages) {
        const name = `${key}\n${messageSeq}`;
        const before = acknowledged.get(name)?.uids ?? [];
        acknowledged.renew(name, { uids: new Set([...before, ...uids]), untilMs: nowMs + ttlMs });
      }
    },

    async acknowledgedBy(key, messageSeqs) {
      const nowMs = performance.now();
      return messageSeqs.map((seq) => {
        const message = acknowledged.get(`${key}\n${seq}`);
        return message === undefined || message.untilMs <= nowMs ? NOBODY : message.uids;
      });
    },

    async claimPushCursor(partition, { token }) {
      if ((tokens.get(partition) ?? 0) > token) return undefined;
      tokens.set(partition, token);
      const stored = pushCursor(tables, partition);
      if (stored !== undefined) return stored;
      const position = events.newest()[partition] ?? { number: 0, id: 0 };
      await persist(tables, () => putPushCursor(tables, partition, position));
      return position;
    },

    movePushCursor: (partition, { lease, from, to, events: drafts }) =>
      outbox.transact((emit) => {
        if (tokens.get(partition) !== lease.token) return false;
        const stored = pushCursor(tables, partition);
        if (stored?.number !== from.number || stored.id !== from.id) return false;
        putPushCursor(tables, partition, to);
        if (emit !== undefined) for (const draft of drafts) emit(draft);
        return true;
      }),
  };
}

/** Returns the position of a partition's cursor, or `undefined` if no cursor exists. */
export function pushCursor(
  { meta }: Pick<Tables, "meta">,
  partition: number,
): EventPosition | undefined {
  const stored = meta.get(cursorName(partition));
  if (stored === undefined) return undefined;
  const [number, id] = fieldsOf(stored, VERSION);
  return { number: Number(number), id: Number(id) };
}

function putPushCursor(
  { meta }: Pick<Tables, "meta">,
  partition: number,
  { number, id }: EventPosition,
): void {
  void meta.put(cursorName(partition), [VERSION, number, id]);
}

function cursorName(partition: number): string {
  return `push/${partition}`;
}
