// A node for the broker tests: its functions, an embedded store in a temporary folder, and a
// cluster of one node.

import type { Test } from "tap";
import { type Channels, createChannels } from "../../src/broker/channels.ts";
import { type Conversations, createConversations } from "../../src/broker/conversations.ts";
import { createCredentials } from "../../src/broker/credentials.ts";
import { shareInterest } from "../../src/broker/interest.ts";
import { createMessages, type Messages } from "../../src/broker/messages.ts";
import type { ChannelInfo, ChannelRef } from "../../src/broker/model.ts";
import type { ClusterEvent, Store } from "../../src/broker/ports.ts";
import { SessionDirectory } from "../../src/broker/session-directory.ts";
import { createSessions, type Sessions } from "../../src/broker/sessions.ts";
import { createStreamFollowers, type StreamFollowers } from "../../src/broker/stream-followers.ts";
import { createStreams, type Streams } from "../../src/broker/streams.ts";
import { createUsers, type Users } from "../../src/broker/users.ts";
import { SingleNode } from "../../src/cluster/single.ts";
import type { EmbeddedOptions } from "../../src/store/embedded/store.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";

export { group, person } from "./node-names.ts";

export const MAX_PAYLOAD_BYTES = 1000;
export const HISTORY_LIMIT = 20;
export const MAX_DATA_BYTES = 1000;
export const STREAM_IDLE_MS = 100;

/** The use cases of one node, with its store, clock and events. */
export interface TestNode {
  readonly store: Store;
  readonly cluster: SingleNode;
  readonly directory: SessionDirectory;
  /** All published events, in order. */
  readonly events: ClusterEvent[];
  readonly clock: { nowMs: number };
  readonly users: Users;
  readonly channels: Channels;
  readonly sessions: Sessions;
  /** Sessions of a node that does not check tokens. */
  readonly openSessions: Sessions;
  readonly messages: Messages;
  readonly streams: Streams;
  readonly followers: StreamFollowers;
  readonly conversations: Conversations;
  /** Errors that no caller received. */
  readonly errors: unknown[];
}

/**
 * Starts a node that is closed with the test. Silent streams are ended only after `streams.start`.
 */
export async function startNode(t: Test, over: Partial<EmbeddedOptions> = {}): Promise<TestNode> {
  const clock = { nowMs: Date.UTC(2026, 0, 1) };
  const events: ClusterEvent[] = [];
  const cluster = new SingleNode("n1");
  const store = await openStore(t, testFolder(t), {
    dedupeWindowS: 3600,
    publisher: cluster,
    clock: () => clock.nowMs,
    ...over,
  });
  const errors: unknown[] = [];
  const onError = (error: unknown) => errors.push(error);
  const followers = createStreamFollowers({
    store,
    interest: shareInterest(cluster).owner(),
    maxFollowers: 10,
    maxFollowersPerUser: 0,
    onError,
  });
  const directory = new SessionDirectory({ store, cluster, onError });
  directory.onEvent(
    (event) => {
      events.push(event);
      followers.onEvent(event);
    },
    async () => {},
  );
  const streams = createStreams({
    friendsOnly: false,
    isSystem: () => false,
    ...{ store, publisher: cluster, nodeId: "n1", onError },
    clock: () => clock.nowMs,
    limits: { idleTimeoutMs: STREAM_IDLE_MS, maxDataBytes: MAX_DATA_BYTES },
    content: { maxPayloadBytes: 65_536, contentValidation: "json" },
  });
  t.teardown(() => streams.close());
  const ports = { store, directory, publisher: cluster };
  return {
    ...{ store, cluster, directory },
    events,
    clock,
    users: createUsers(ports),
    channels: createChannels(ports),
    sessions: createSessions({ directory, store, credentials: createCredentials("token") }),
    openSessions: createSessions({ directory, store, credentials: createCredentials("none") }),
    messages: createMessages(store, {
      maxPayloadBytes: MAX_PAYLOAD_BYTES,
      historyLimit: HISTORY_LIMIT,
      friendsOnly: false,
      isSystem: () => false,
      contentValidation: "json",
    }),
    ...{ streams, followers, errors },
    conversations: createConversations({ store, publisher: cluster, clock: () => clock.nowMs }),
  };
}

/** Returns the record of a channel without rules, with the given changes. */
export function rules(channel: ChannelRef, changes: Partial<ChannelInfo> = {}): ChannelInfo {
  return {
    ...channel,
    ban: false,
    disband: false,
    sendBan: false,
    allowStranger: false,
    large: false,
    clientEvents: true,
    ...changes,
  };
}
