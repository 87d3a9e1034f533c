// The operation table: the cost and the handler of each operation that a connected client can
// request. A handler sends the operation's reply, if it has one. If a handler throws a BrokerError,
// the error is sent to the client with the operation's ref.

import type { Channels } from "../broker/channels.ts";
import type { ClientEvents } from "../broker/client-events.ts";
import type { Conversations } from "../broker/conversations.ts";
import { BrokerError, KICK_REASONS } from "../broker/errors.ts";
import type { Messages } from "../broker/messages.ts";
import {
  type ChannelRef,
  GROUP_CHANNEL,
  type Message,
  messageTimeMs,
  PERSON_CHANNEL,
} from "../broker/model.ts";
import type { ChannelStore, Clock, Cluster, InboxStore } from "../broker/ports.ts";
import {
  mayRead,
  requireEmit,
  requirePresence,
  requireRead,
  requireSend,
} from "../broker/rights.ts";
import type { SessionDirectory } from "../broker/session-directory.ts";
import type { Streams } from "../broker/streams.ts";
import type { FairSemaphore } from "../lib/fair-semaphore.ts";
import type { GatewayMetrics } from "../observe/metrics.ts";
import type { Operation, OperationKind } from "../protocol/protocol.ts";
import type { CatchUps } from "./catch-up.ts";
import type { CredentialExpiry } from "./expiry.ts";
import type { Hub } from "./hub.ts";
import { connackOf, type OpeningContext } from "./opening.ts";
import { lookups, REFRESH_WORK, type Reservation, reading, rowsAhead, watching } from "./rates.ts";
import { concernOf, readJudged } from "./read-judged.ts";
import { isRead, Reads } from "./reads.ts";
import type { Session } from "./session.ts";
import type { PresenceWatch } from "./watch.ts";

export interface OperationPorts extends Pick<OpeningContext, "nodeId" | "clientLimits"> {
  readonly expiry: Pick<CredentialExpiry, "refresh">;
  readonly messages: Messages;
  readonly clientEvents: ClientEvents;
  readonly streams: Streams;
  readonly conversations: Conversations;
  readonly channels: Pick<Channels, "uids">;
  readonly store: Pick<ChannelStore, "groupFacts"> & Pick<InboxStore, "acknowledgeCommands">;
  readonly cluster: Pick<Cluster, "barrier" | "recovery" | "delivered">;
  readonly directory: Pick<SessionDirectory, "presence">;
  readonly catchUps: Pick<CatchUps, "recordSnapshot">;
  readonly watch: Pick<PresenceWatch, "plan" | "watch">;
  readonly hub: Pick<Hub, "deliveryWork">;
  /**
   * Receives the facts that decide whether a user needs a push notification. `undefined` if push
   * notifications are off, so that these facts are not stored.
   */
  readonly push:
    | {
        acknowledged(uid: string, message: Message): void;
        setBackground(session: Session, isBackground: boolean): Promise<void>;
      }
    | undefined;
  readonly turns: FairSemaphore;
  readonly clock: Clock;
  readonly metrics: GatewayMetrics;
  readonly maxHistoryBytes: number;
}

/**
 * Maximum acknowledgement delay that the metrics record. Longer delays do not reflect the delivery
 * speed.
 */
const MAX_RECVACK_DELAY_MS = 3_600_000;

const MEMBERS_OF_A_PERSON =
  "Only a group has members. A personal channel belongs to its two users.";

type OperationOf<K extends OperationKind> = Extract<Operation, { readonly kind: K }>;

interface OperationRow<K extends OperationKind> {
  /**
   * Returns the cost, in frames, that is known before the operation runs. The cost of the
   * operation's own frame is not included.
   */
  cost?(operation: OperationOf<K>, session: Session, ports: OperationPorts): number;
  /**
   * Returns the work of delivering the operation's message or event on this node. It is charged in
   * full before the operation runs, and only to the user.
   */
  delivers?(operation: OperationOf<K>, session: Session, ports: OperationPorts): number;
  /**
   * Returns the number of bytes that the operation stores. Absent if the operation stores few bytes
   * or none.
   */
  stores?(operation: OperationOf<K>, frameBytes: number): number;
  /**
   * Runs the operation. Resolves to the actual work, which replaces `cost`, or to `undefined` if
   * `cost` was right. Returns `undefined` without a promise if the operation is already done.
   */
  run(
    session: Session,
    operation: OperationOf<K>,
    ports: OperationPorts,
    reserved: Reservation | undefined,
  ): Promise<number | undefined> | undefined;
}

type OperationTable = { readonly [K in OperationKind]: OperationRow<K> };

const OPERATIONS: OperationTable = {
  connect: {
    run() {
      throw new BrokerError("bad_request", {
        message:
          "The connection already has a session. Open another connection for another session.",
      });
    },
  },

  send: {
    delivers: ({ channel, payload }, { uid }, { hub }) =>
      hub.deliveryWork(uid, channel, payload.length),
    stores: ({ header }, frameBytes) => (header.noPersist ? 0 : frameBytes),
    async run(session, operation, { messages, metrics }, reserved) {
      requireSend(session.rights, operation.channel);
      const startedMs = performance.now();
      const sent = await messages.send({
        fromUid: session.uid,
        channel: operation.channel,
        clientMsgNo: operation.clientMsgNo || undefined,
        header: operation.header,
        expireS: operation.expireS,
        streamNo: operation.streamNo,
        tagKey: operation.tagKey,
        passthrough: operation.passthrough,
        allowsReuse: operation.allowsReuse,
        payload: operation.payload,
        subscribers: undefined,
        origin: session.sessionId,
        recheck: () => {
          requireNotKicked(session);
          requireSend(session.rights, operation.channel);
        },
        copyLimit: reserved,
      });
      metrics.sent(operation.channel.type, performance.now() - startedMs);
      const { messageId, messageSeq, clientMsgNo, repeated } = sent;
      session.reply({
        kind: "sendack",
        ref: operation.ref,
        messageId,
        messageSeq,
        clientMsgNo,
        repeated,
      });
    },
  },

  emit: {
    delivers: ({ channel, data }, { uid }, { hub }) => hub.deliveryWork(uid, channel, data.length),
    async run(session, { ref, channel, type, data }, { clientEvents, metrics }) {
      requireEmit(session.rights, channel);
      session.rate?.admitEvent();
      const { uid: fromUid, sessionId: origin } = session;
      await clientEvents.emit({ fromUid, channel, type, data, origin });
      metrics.emitted(channel.type);
      if (ref !== 0) session.reply({ kind: "emit", ref });
    },
  },

  recvack: {
    run(session, { messageId }, { clock, metrics, store, push }) {
      const pushed = session.acknowledged(messageId);
      const delayMs = clock() - messageTimeMs(messageId);
      if (delayMs >= 0 && delayMs <= MAX_RECVACK_DELAY_MS) metrics.acknowledged(delayMs);
      if (pushed?.kind === "message") push?.acknowledged(session.uid, pushed.message);
      // Some clients acknowledge a command with RECVACK, like a message.
      if (pushed?.kind !== "command" || pushed.inboxSeq === 0) return undefined;
      return removeCommand(session.uid, pushed.inboxSeq, { metrics, store });
    },
  },

  history: {
    cost: ({ limit }) => rowsAhead(limit),
    async run(session, operation, ports) {
      const { ref, channel, fromSeq, toSeq, limit, reverse } = operation;
      const view = { channel, uid: session.uid };
      const range = {
        fromSeq,
        toSeq: toSeq === 0 ? Number.MAX_SAFE_INTEGER : toSeq,
        ...{ limit, reverse, maxBytes: ports.maxHistoryBytes },
      };
      const page = await readAsMember(session, channel, ports, () =>
        ports.messages.history(view, range),
      );
      const bytes = session.reply({ kind: "history", ref, channel, ...page });
      for (const { stream } of page.messages) ports.catchUps.recordSnapshot(session, stream);
      return reading(page.messages.length, bytes);
    },
  },

  presence: {
    cost: ({ uids }) => lookups(uids.length),
    async run(session, { ref, uids }, { directory }) {
      requirePresence(session.rights, uids);
      const presence = await directory.presence(uids);
      session.reply({ kind: "presence", ref, presence });
    },
  },

  watch: {
    cost: ({ uids }, session, { watch }) => watching(watch.plan(session, uids)),
    async run(session, { ref, uids }, { watch }) {
      requirePresence(session.rights, uids);
      await watch.watch(session, uids, (presence) =>
        session.reply({ kind: "watch", ref, presence }),
      );
    },
  },

  stream: {
    async run(session, { ref, channel, clientMsgNo }, ports) {
      const view = { channel, uid: session.uid };
      const snapshot = await readAsMember(session, channel, ports, async () => {
        const snapshot = await ports.streams.read(view, clientMsgNo);
        // Without the barrier, an event that the snapshot contains could be pushed after the reply.
        await ports.cluster.barrier();
        return snapshot;
      });
      const bytes = session.reply({ kind: "stream", ref, channel, snapshot });
      ports.catchUps.recordSnapshot(session, snapshot);
      return reading(1, bytes);
    },
  },

  cancel: {
    delivers: ({ channel }, { uid }, { hub }) => hub.deliveryWork(uid, channel),
    async run(session, { ref, channel, clientMsgNo }, { streams }) {
      requireSend(session.rights, channel);
      const state = await streams.cancel(session.uid, channel, clientMsgNo);
      session.reply({ kind: "cancel", ref, state });
    },
  },

  conversations: {
    async run(session, { ref, cursor, limit, sinceMs }, ports) {
      const range = { cursor, limit, sinceMs, maxBytes: ports.maxHistoryBytes };
      const { uid } = session;
      const concernsUser = concernOf(uid);
      const page = await readJudged(
        ports.cluster,
        (topic) =>
          concernsUser(topic) || (topic.startsWith("g:") && session.follows(topic.slice(2))),
        () => ports.conversations.list(uid, range),
      );
      const { readCount } = page;
      const { rights } = session;
      const conversations =
        rights === undefined
          ? page.conversations
          : page.conversations.filter(({ channel }) => mayRead(rights, channel));
      const reply = {
        kind: "conversations",
        ref,
        conversations,
        cursor: page.cursor,
      } as const;
      const bytes = session.reply(reply);
      for (const { last } of conversations) ports.catchUps.recordSnapshot(session, last?.stream);
      return lookups(readCount) + reading(conversations.length, bytes);
    },
  },

  conversation: {
    delivers: ({ change }, { uid }, { hub }) =>
      change === undefined ? 0 : hub.deliveryWork(uid, ownChannel(uid)),
    async run(session, { ref, channel, change }, ports) {
      const { uid, sessionId, rights } = session;
      const { conversations } = ports;
      requireRead(rights, channel);
      const conversation =
        change === undefined
          ? await readAsMember(session, channel, ports, () => conversations.read(uid, channel))
          : await conversations.change({ uid, origin: sessionId }, channel, change);
      const bytes = session.reply({ kind: "conversation", ref, conversation });
      ports.catchUps.recordSnapshot(session, conversation.last?.stream);
      return change === undefined ? reading(1, bytes) : undefined;
    },
  },

  members: {
    async run(session, { ref, channel, cursor, limit }, ports) {
      if (channel.type !== GROUP_CHANNEL)
        throw new BrokerError("bad_request", { message: MEMBERS_OF_A_PERSON });
      const page = await readAsMember(session, channel, ports, () =>
        ports.channels.uids(channel, "members", { after: cursor ?? "", limit }),
      );
      const { ids, more, total } = page;
      const bytes = session.reply({
        ...({ kind: "members", ref, uids: ids } as const),
        cursor: more ? ids.at(-1) : undefined,
      });
      return lookups(total) + reading(0, bytes);
    },
  },

  commandack: {
    cost: ({ inboxSeqs }) => lookups(inboxSeqs.length),
    async run(session, { ref, inboxSeqs }, { store, metrics }) {
      session.acknowledgedCommands(inboxSeqs);
      const count = await store.acknowledgeCommands(session.uid, inboxSeqs);
      metrics.commandsAcknowledged(count);
      session.reply({ kind: "commandack", ref, count });
    },
  },

  state: {
    run(session, { ref, foreground }, { push }) {
      const mustStore = session.isForeground !== foreground || !session.isForegroundStored;
      session.isForeground = foreground;
      if (push !== undefined && mustStore) return shareState(session, ref, push);
      session.reply({ kind: "state", ref });
      return undefined;
    },
  },

  refresh: {
    cost: () => REFRESH_WORK,
    async run(session, { ref, token }, ports) {
      const expiresInS = await ports.expiry.refresh(session, token);
      const { sessionId, newestId } = session.connack ?? {
        sessionId: session.sessionId,
        newestId: 0,
      };
      session.reply(
        connackOf(session, { ref, sessionId, newestId, resume: [], expiresInS }, ports),
      );
    },
  },

  ping: {
    run(session, { ref }, { clock }) {
      session.reply({ kind: "pong", ref, serverTimeMs: clock() });
    },
  },

  disconnect: {
    run(session) {
      session.end("goodbye");
    },
  },
};

export function costOf(operation: Operation, session: Session, ports: OperationPorts): number {
  return rowOf(operation).cost?.(operation, session, ports) ?? 0;
}

export function deliveryOf(operation: Operation, session: Session, ports: OperationPorts): number {
  return rowOf(operation).delivers?.(operation, session, ports) ?? 0;
}

export function storedBytes(operation: Operation, frameBytes: number): number {
  return rowOf(operation).stores?.(operation, frameBytes) ?? 0;
}

/** Runs an operation whose work has been reserved. */
export function operate(
  session: Session,
  operation: Operation,
  ports: OperationPorts,
  reserved?: Reservation,
): Promise<number | undefined> | undefined {
  const row = rowOf(operation);
  if (!isRead(operation)) return row.run(session, operation, ports, reserved);
  session.reads ??= new Reads(session, ports.maxHistoryBytes, ports.turns);
  return session.reads.run(operation.kind, () => row.run(session, operation, ports, reserved));
}

function rowOf(operation: Operation): OperationRow<OperationKind> {
  // The table maps each kind to the row of exactly that kind. The compiler cannot follow this
  // through the index.
  return OPERATIONS[operation.kind] as OperationRow<OperationKind>;
}

/**
 * Throws `unauthorized` if the session was ended for one of the `KICK_REASONS` after the request
 * arrived. A lost connection does not matter, because the user still wants the message.
 */
function requireNotKicked({ ended }: Session): void {
  if (ended !== undefined && KICK_REASONS.includes(ended)) throw new BrokerError("unauthorized");
}

async function removeCommand(
  uid: string,
  inboxSeq: number,
  { store, metrics }: Pick<OperationPorts, "store" | "metrics">,
): Promise<undefined> {
  metrics.commandsAcknowledged(await store.acknowledgeCommands(uid, [inboxSeq]));
}

/**
 * Stores whether the user is looking at the app, and replies when the other nodes can read this
 * state.
 */
async function shareState(
  session: Session,
  ref: number,
  push: NonNullable<OperationPorts["push"]>,
): Promise<undefined> {
  const { isForeground } = session;
  try {
    await push.setBackground(session, !isForeground);
  } catch (error) {
    session.isForegroundStored = false;
    throw error;
  }
  // A later call with another state may have failed during this call.
  session.isForegroundStored = session.isForeground === isForeground;
  session.reply({ kind: "state", ref });
}

function ownChannel(uid: string): ChannelRef {
  return { type: PERSON_CHANNEL, id: uid };
}

/**
 * Runs a read that only members may perform. Checks the membership and the session's rights before
 * and after the read, because both may change during the read.
 */
async function readAsMember<T>(
  session: Session,
  channel: ChannelRef,
  ports: Pick<OperationPorts, "store" | "cluster">,
  read: () => Promise<T>,
): Promise<T> {
  await requireReader(session, channel, ports);
  const concerns = concernOf(session.uid, channel);
  const result = await readJudged(ports.cluster, concerns, read);
  await requireReader(session, channel, ports);
  return result;
}

async function requireReader(
  session: Session,
  channel: ChannelRef,
  { store }: Pick<OperationPorts, "store">,
): Promise<void> {
  requireRead(session.rights, channel);
  if (channel.type !== GROUP_CHANNEL) return; // personal channels have no membership
  const facts = await store.groupFacts(channel.id, session.uid);
  if (!facts.isSubscriber) throw new BrokerError("not_in_channel");
}
