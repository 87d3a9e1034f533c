// The operation table: what each operation of a connected client does. Generic checks (connected, rate, in-flight bound) are the client's;
// a handler replies, or throws a BrokerError that the client answers with the operation's ref.

import { BrokerError } from "../broker/errors.ts";
import {
  type ChannelRef,
  GROUP_CHANNEL,
  messageTimeMs,
} from "../broker/model.ts";
import type { Operation, OperationKind } from "../protocol/protocol.ts";
import type { OperationPorts } from "./operation-ports.ts";
import { isRead, Reads } from "./reads.ts";
import type { Session } from "./session.ts";

export type { OperationPorts } from "./operation-ports.ts";

/** Later confirmations, and ids that are none, say nothing of how delivery goes. */
const MAX_RECVACK_DELAY_MS = 3_600_000;

type Handler<K extends OperationKind> = (
  session: Session,
  operation: Extract<Operation, { readonly kind: K }>,
  ports: OperationPorts,
) => Promise<void> | void;

type OperationTable = { readonly [K in OperationKind]: Handler<K> };

const OPERATIONS: OperationTable = {
  connect() {
    throw new BrokerError("bad_request", {
      message: "The connection has a session already",
    });
  },

  async send(session, operation, { messages, metrics }) {
    const startedMs = performance.now();
    const sent = await messages.send({
      fromUid: session.uid,
      channel: operation.channel,
      clientMsgNo: operation.clientMsgNo || undefined,
      header: operation.header,
      expireS: operation.expireS,
      streamNo: operation.streamNo,
      tagKey: operation.tagKey,
      payload: operation.payload,
      subscribers: undefined,
      origin: session.sessionId,
    });
    metrics.sent(operation.channel.type, performance.now() - startedMs);
    const { messageId, messageSeq, clientMsgNo } = sent;
    session.reply({
      kind: "sendack",
      ref: operation.ref,
      messageId,
      messageSeq,
      clientMsgNo,
    });
  },

  recvack(_session, { messageId }, { clock, metrics }) {
    const delayMs = clock() - messageTimeMs(messageId);
    if (delayMs >= 0 && delayMs <= MAX_RECVACK_DELAY_MS)
      metrics.acknowledged(delayMs);
  },

  async history(session, operation, ports) {
    const { ref, channel, fromSeq, toSeq, limit, reverse } = operation;
    await requireMembership(session, channel, ports);
    const page = await ports.messages.history(
      { channel, uid: session.uid },
      {
        fromSeq,
        toSeq: toSeq === 0 ? Number.MAX_SAFE_INTEGER : toSeq,
        limit,
        reverse,
        maxBytes: ports.maxHistoryBytes,
      },
    );
    session.reply({ kind: "history", ref, channel, ...page });
    for (const { stream } of page.messages) ports.hub.shown(session, stream);
  },

  async presence(session, { ref, uids }, { directory }) {
    const presence = await directory.presence(uids);
    session.reply({ kind: "presence", ref, presence });
  },

  async watch(session, { ref, uids }, { watch }) {
    await watch.watch(session, uids, (presence) =>
      session.reply({ kind: "watch", ref, presence }),
    );
  },

  async stream(session, { ref, channel, clientMsgNo }, ports) {
    await requireMembership(session, channel, ports);
    const view = { channel, uid: session.uid };
    const snapshot = await ports.streams.read(view, clientMsgNo);
    await ports.cluster.barrier(); // what the snapshot holds is pushed before it, or never
    session.reply({ kind: "stream", ref, channel, snapshot });
    ports.hub.shown(session, snapshot);
  },

  async cancel(session, { ref, channel, clientMsgNo }, { streams }) {
    const state = await streams.cancel(session.uid, channel, clientMsgNo);
    session.reply({ kind: "cancel", ref, state });
  },

  async conversations(session, { ref, offset, limit }, ports) {
    const page = await ports.conversations.list(session.uid, {
      ...{ offset, limit, maxBytes: ports.maxHistoryBytes },
    });
    session.reply({ kind: "conversations", ref, ...page });
    for (const { last } of page.conversations)
      ports.hub.shown(session, last?.stream);
  },

  async conversation(session, { ref, channel, change }, ports) {
    const by = { uid: session.uid, origin: session.sessionId };
    const conversation = await ports.conversations.change(by, channel, change);
    session.reply({ kind: "conversation", ref, conversation });
    ports.hub.shown(session, conversation.last?.stream);
  },

  async commandack(session, { ref, inboxSeqs }, { store, metrics }) {
    const count = await store.acknowledgeCommands(session.uid, inboxSeqs);
    metrics.commandsAcknowledged(count);
    session.reply({ kind: "commandack", ref, count });
  },

  ping(session, { ref }, { clock }) {
    session.reply({ kind: "pong", ref, serverTimeMs: clock() });
  },

  disconnect(session) {
    session.end("goodbye");
  },
};

/** Runs the operation, one that reads when its turn comes. Rejects or throws with the BrokerError to answer. */
export function operate(
  session: Session,
  operation: Operation,
  ports: OperationPorts,
): Promise<void> | void {
  // the table maps each kind to the handler of exactly that kind; the compiler cannot follow the pairing through the index
  const handle = OPERATIONS[operation.kind] as Handler<OperationKind>;
  const run = () => handle(session, operation, ports);
  if (!isRead(operation.kind)) return run();
  session.reads ??= new Reads(session, ports.maxHistoryBytes);
  return session.reads.run(operation.kind, run);
}

async function requireMembership(
  session: Session,
  channel: ChannelRef,
  { store }: Pick<OperationPorts, "store">,
): Promise<void> {
  if (channel.type !== GROUP_CHANNEL) return; // one's own conversation
  const facts = await store.groupFacts(channel.id, session.uid);
  if (!facts.isSubscriber) throw new BrokerError("not_in_channel");
}
