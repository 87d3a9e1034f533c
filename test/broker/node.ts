// The domain's use cases over the real embedded store and a cluster of one, in a folder of its own: what the broker's tests play on.

import type { Test } from "tap";
import { type Channels, createChannels } from "../../src/broker/channels.ts";
import { createMessages, type Messages } from "../../src/broker/messages.ts";
import {
  type ChannelInfo,
  type ChannelRef,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
} from "../../src/broker/model.ts";
import type { ClusterEvent, Store } from "../../src/broker/ports.ts";
import { createSessions, type Sessions } from "../../src/broker/sessions.ts";
import { createUsers, type Users } from "../../src/broker/users.ts";
import { SingleNode } from "../../src/cluster/single.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";

export const MAX_PAYLOAD_BYTES = 1000;
export const HISTORY_LIMIT = 20;

export interface TestNode {
  readonly store: Store;
  readonly cluster: SingleNode;
  /** Everything published, in order. */
  readonly events: ClusterEvent[];
  readonly clock: { nowMs: number };
  readonly users: Users;
  readonly channels: Channels;
  readonly sessions: Sessions;
  /** Sessions of a node that asks for no tokens. */
  readonly openSessions: Sessions;
  readonly messages: Messages;
}

/** Started, and closed with the test. */
export async function startNode(t: Test): Promise<TestNode> {
  const clock = { nowMs: Date.UTC(2026, 0, 1) };
  const events: ClusterEvent[] = [];
  const cluster = new SingleNode("n1");
  cluster.onEvent((event) => events.push(event));
  const store = await openStore(t, testFolder(t), {
    dedupeWindowS: 3600,
    publisher: cluster,
    clock: () => clock.nowMs,
  });
  const ports = { store, directory: cluster, publisher: cluster };
  return {
    store,
    cluster,
    events,
    clock,
    users: createUsers(ports),
    channels: createChannels(ports),
    sessions: createSessions(ports, "token"),
    openSessions: createSessions(ports, "none"),
    messages: createMessages(store, {
      maxPayloadBytes: MAX_PAYLOAD_BYTES,
      historyLimit: HISTORY_LIMIT,
      contentValidation: "json",
    }),
  };
}

export const group = (id: string): ChannelRef => ({ id, type: GROUP_CHANNEL });
export const person = (id: string): ChannelRef => ({
  id,
  type: PERSON_CHANNEL,
});

/** A channel's record without any rule but the given ones. */
export function rules(
  channel: ChannelRef,
  set: Partial<ChannelInfo> = {},
): ChannelInfo {
  return {
    ...channel,
    ban: false,
    disband: false,
    sendBan: false,
    allowStranger: false,
    large: false,
    ...set,
  };
}
