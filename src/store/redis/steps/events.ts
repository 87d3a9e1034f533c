// The event feed in Redis, which is always off. No state.

import { BrokerError } from "../../../broker/errors.ts";
import { EVENT_PARTITIONS, EVENTS_START, type EventStore } from "../../../broker/event-ports.ts";

const NO_EVENTS = Array.from({ length: EVENT_PARTITIONS }, () => EVENTS_START);

export function createRedisEvents(): EventStore {
  return {
    isFeedOn: async () => false,
    async switchFeed(isOn) {
      if (isOn)
        throw new BrokerError("bad_request", {
          message: "This build writes no event feed to Redis. Use the embedded store.",
        });
    },
    newestEvents: async () => NO_EVENTS,
    oldestEvents: async () => NO_EVENTS,
    eventsSince: async () => NO_EVENTS,
    readEvents: async () => ({ rows: [], lost: 0, loss: undefined }),
    onEvents: () => () => {},
    trimEvents: async () => 0,
    eventBytes: async () => 0,
  };
}
