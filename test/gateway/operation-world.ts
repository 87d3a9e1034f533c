// Ports for operations in a test world. Streams are read from the world's server; all other calls
// return what the test supplies.

import type { Conversations } from "../../src/broker/conversations.ts";
import { BrokerError } from "../../src/broker/errors.ts";
import type { Messages } from "../../src/broker/messages.ts";
import { channelKey, type StreamState } from "../../src/broker/model.ts";
import { type OperationPorts, operate } from "../../src/gateway/operations.ts";
import { createHistoryTurns } from "../../src/gateway/reads.ts";
import type { Operation } from "../../src/protocol/protocol.ts";
import type { Joiner, World } from "./world.ts";

const unused = (): never => {
  throw new Error("this test does not use this call");
};
const ignore = (): void => {};

export interface OperationWorld {
  readonly conversations?: Pick<Conversations, "list" | "change">;
  readonly history?: Messages["history"];
  readonly cancel?: (uid: string) => Promise<StreamState>;
  readonly setBackground?: (isBackground: boolean) => Promise<void>;
  readonly acknowledge?: (uid: string, inboxSeqs: readonly number[]) => Promise<number>;
}

export function operationPorts(world: World, fakes: OperationWorld = {}): OperationPorts {
  const { server, catchUps, watch } = world;
  const { setBackground } = fakes;
  return {
    messages: {
      ...{ send: unused, headSeq: unused, find: unused },
      history: fakes.history ?? unused,
    },
    streams: {
      async read({ channel, uid }, clientMsgNo) {
        const key = channelKey(channel, uid ?? "");
        const snapshot = await server.store.stream(key, clientMsgNo);
        if (snapshot === undefined) throw new BrokerError("stream_unknown");
        return snapshot;
      },
      cancel: fakes.cancel ?? unused,
      ...{ post: unused, start: unused, close: unused },
    },
    clientEvents: { emit: unused },
    push: setBackground && {
      acknowledged: unused,
      setBackground: (_session, isBackground) => setBackground(isBackground),
    },
    expiry: { refresh: unused },
    nodeId: "n1",
    clientLimits: {
      ...{ maxFrameBytes: 1000, maxPayloadBytes: 1000 },
      ...{ idleTimeoutS: 60, maxFramesPerSecond: 0 },
    },
    conversations: {
      ...{ select: unused, list: unused, among: unused, read: unused, change: unused },
      ...fakes.conversations,
    },
    channels: { uids: unused },
    store: {
      groupFacts: (id, uid) => ({
        info: undefined,
        isSubscriber: server.groupsOf(uid).includes(id),
        ...{ isDenied: false, hasAllowlist: false, isAllowed: false },
      }),
      acknowledgeCommands: fakes.acknowledge ?? unused,
    },
    ...{
      catchUps,
      watch,
      cluster: server.cluster,
      directory: server.directory,
    },
    hub: world.hub,
    turns: createHistoryTurns(),
    clock: () => 0,
    metrics: METRICS,
    maxHistoryBytes: 1000,
  };
}

/** Returns a function that runs operations of the world's sessions, as frames of a client would. */
export function operator(
  world: World,
  fakes: OperationWorld = {},
): (joiner: Joiner, operation: Operation) => Promise<void> {
  const ports = operationPorts(world, fakes);
  return async ({ session }, operation) => {
    await operate(session, operation, ports);
  };
}

const METRICS: OperationPorts["metrics"] = {
  connectionOpened: ignore,
  connectionClosed: ignore,
  sessionOpened: ignore,
  sessionClosed: ignore,
  ended: ignore,
  frameIn: ignore,
  worked: ignore,
  sent: ignore,
  emitted: ignore,
  refused: ignore,
  acknowledged: ignore,
  resumed: ignore,
  eventPushed: ignore,
  caughtUp: ignore,
  commandsPushed: ignore,
  catchingUp: ignore,
  commandsAcknowledged: ignore,
};
