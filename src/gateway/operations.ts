// The operation table: what each operation of a connected client does. Generic checks (connected, rate, in-flight bound) are the client's;
// a handler replies, or throws a BrokerError that the client answers with the operation's ref.

import { BrokerError } from "../broker/errors.ts";
import type { Messages } from "../broker/messages.ts";
import {
  type ChannelRef,
  GROUP_CHANNEL,
  messageTimeMs,
} from "../broker/model.ts";
import type { ChannelStore, Clock, SessionDirectory } from "../broker/ports.ts";
import type { Operation, OperationKind } from "../protocol/protocol.ts";
import type { GatewayMetrics } from "./metrics.ts";
import type { Session } from "./session.ts";

export interface OperationPorts {
  readonly messages: Messages;
  readonly store: Pick<ChannelStore, "groupFacts">;
  readonly directory: Pick<SessionDirectory, "presence">;
  readonly clock: Clock;
  readonly metrics: GatewayMetrics;
  /** Most payload bytes in one history reply. */
  readonly maxHistoryBytes: number;
}

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
  },

  async presence(session, { ref, uids }, { directory }) {
    const presence = await directory.presence(uids);
    session.reply({ kind: "presence", ref, presence });
  },

  ping(session, { ref }, { clock }) {
    session.reply({ kind: "pong", ref, serverTimeMs: clock() });
  },

  disconnect(session) {
    session.end("goodbye");
  },
};

/** Runs the operation. Rejects or throws with the BrokerError to answer. */
export function operate(
  session: Session,
  operation: Operation,
  ports: OperationPorts,
): Promise<void> | void {
  // the table maps each kind to the handler of exactly that kind; the compiler cannot follow the pairing through the index
  const handle = OPERATIONS[operation.kind] as Handler<OperationKind>;
  return handle(session, operation, ports);
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
