// Starts the endpoints that serve feeds of streams on real sockets: the control plane and the
// endpoint for viewers, over the broker's followers and a store with a single stream.

import type { Test } from "tap";
import { createViewerEndpoint } from "../../src/api/endpoint.ts";
import type { Viewers } from "../../src/api/viewers.ts";
import { BrokerError } from "../../src/broker/errors.ts";
import type { StreamState } from "../../src/broker/model.ts";
import type { ClusterEvent } from "../../src/broker/ports.ts";
import { createFollowers, HeldStore } from "../broker/held-store.ts";
import { startListener } from "../transport/support.ts";
import { SETTINGS, startApi, type TestApi, type TestSettings } from "./harness.ts";

/** The running endpoints, and functions that make events happen. */
export interface FeedSetup {
  readonly port: number;
  readonly store: HeldStore;
  readonly viewersPort: number;
  readonly api: TestApi;
  readonly observed: readonly [string, number][];
  /** Adds an event to the stream and publishes it to the readers. */
  produce(type: string, data: string, state?: StreamState): void;
  /** Publishes a cluster event of any other kind to the followers. */
  notify(event: ClusterEvent): void;
  /** Ends all followers, like a node that stops. */
  closeFollowers(): void;
}

interface FeedSettings {
  readonly api?: Partial<TestSettings>;
  readonly maxFollowers?: number;
  readonly keepAliveMs?: number;
  readonly admit?: Viewers["admit"];
}

const rejectAll = () => Promise.reject(new BrokerError("unauthorized"));

/** Starts the endpoints. Without `settings.admit`, no viewer is admitted. */
export async function startFeeds(t: Test, settings: FeedSettings = {}): Promise<FeedSetup> {
  const { maxFollowers = 100, keepAliveMs = 60_000, admit = rejectAll } = settings;
  const store = new HeldStore();
  const { followers } = createFollowers(store, maxFollowers);
  const ports = {
    streams: {
      post: async () => ({ state: undefined }),
      cancel: async () => "cancelled" as const,
      read: async (_view: unknown, clientMsgNo: string) => {
        const snapshot = await store.port.stream("", clientMsgNo);
        if (snapshot === undefined) throw new BrokerError("stream_unknown");
        return snapshot;
      },
    },
    followers,
    viewers: { allowsOrigin: () => true, admit, beginRead: () => () => {}, clock: Date.now },
    keepAliveMs,
  };
  const api = await startApi(settings.api, {}, ports);
  const log = { error: () => {}, warn: () => {} };
  const viewerEndpoint = createViewerEndpoint({
    ...{ ...api.ports, ...ports, log },
    ...{ managers: api.managers, settings: SETTINGS },
  });
  const { port } = await startListener(t, { http: api.endpoint });
  const viewers = await startListener(t, { http: viewerEndpoint });
  return {
    port,
    store,
    viewersPort: viewers.port,
    ...{ api, observed: api.observed },
    produce(type, data, state) {
      const event = store.stream.add(type, data, state);
      followers.onEvent({ kind: "event", event });
    },
    notify: (event) => followers.onEvent(event),
    closeFollowers: () => followers.close(),
  };
}
