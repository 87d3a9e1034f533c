// Streams followed over real sockets: the control plane and the viewers' endpoint, over the
// broker's followers and a store of one stream.

import type { Test } from "tap";
import { type ApiSettings, createViewerEndpoint } from "../../src/api/endpoint.ts";
import type { Viewers } from "../../src/api/viewers.ts";
import { BrokerError } from "../../src/broker/errors.ts";
import type { StreamState } from "../../src/broker/model.ts";
import type { ClusterEvent } from "../../src/broker/ports.ts";
import { HeldStore, world } from "../broker/held-store.ts";
import { startListener } from "../transport/support.ts";
import { startApi, type TestApi } from "./harness.ts";

export interface FeedWorld {
  readonly port: number;
  readonly store: HeldStore;
  readonly viewersPort: number;
  readonly api: TestApi;
  readonly observed: readonly [string, number][];
  /** The producer adds an event; readers hear of it. */
  say(type: string, data: string, state?: StreamState): void;
  /** The node hears of something else. */
  hear(event: ClusterEvent): void;
  /** As a node that goes. */
  shut(): void;
}

interface FeedSettings {
  readonly api?: Partial<ApiSettings>;
  readonly maxFollowers?: number;
  readonly keepAliveMs?: number;
  readonly admit?: Viewers["admit"];
}

const forbid = () => Promise.reject(new BrokerError("unauthorized"));

export async function startFeeds(t: Test, settings: FeedSettings = {}): Promise<FeedWorld> {
  const { maxFollowers = 100, keepAliveMs = 60_000, admit = forbid } = settings;
  const store = new HeldStore();
  const { followers } = world(store, maxFollowers);
  const parts = {
    streams: {
      post: async () => ({ state: undefined }),
      read: async (_view: unknown, clientMsgNo: string) => {
        const found = await store.port.stream("", clientMsgNo);
        if (found === undefined) throw new BrokerError("stream_unknown");
        return found;
      },
    },
    followers,
    viewers: { allowsOrigin: () => true, admit },
    keepAliveMs,
  };
  const api = await startApi(settings.api, {}, parts);
  const log = { error: () => {}, warn: () => {} };
  const viewerEndpoint = createViewerEndpoint({ ...parts, log });
  const { port } = await startListener(t, { http: api.endpoint });
  const viewers = await startListener(t, { http: viewerEndpoint });
  return {
    port,
    store,
    viewersPort: viewers.port,
    ...{ api, observed: api.observed },
    say(type, data, state) {
      const event = store.stream.add(type, data, state);
      followers.heard({ kind: "event", event });
    },
    hear: (event) => followers.heard(event),
    shut: () => followers.close(),
  };
}
