// Wraps the operations of the control plane so that their calls are counted. Keeps no state. The
// caller owns the metrics.

import { BrokerError } from "../broker/errors.ts";
import type { Managers } from "../broker/managers.ts";
import type { Messages } from "../broker/messages.ts";
import type { Streams } from "../broker/streams.ts";
import type { ApiMetrics } from "../observe/metrics.ts";

export function measuredMessages(messages: Messages, metrics: ApiMetrics): Messages {
  return {
    ...messages,
    async send(input) {
      const startedMs = performance.now();
      try {
        const result = await messages.send(input);
        metrics.sent(input.channel.type, performance.now() - startedMs);
        return result;
      } catch (error) {
        if (error instanceof BrokerError) metrics.refused(error.code);
        throw error;
      }
    },
  };
}

/** Counts only rejected events, because the endpoint already counts all calls. */
export function measuredStreams(streams: Streams, metrics: ApiMetrics): Streams {
  return {
    ...streams,
    async post(input) {
      try {
        return await streams.post(input);
      } catch (error) {
        if (error instanceof BrokerError) metrics.refused(error.code);
        throw error;
      }
    },
  };
}

export function measuredManagers(managers: Managers, metrics: ApiMetrics): Managers {
  return {
    ...managers,
    async login(username, password, clientAddress) {
      try {
        const login = await managers.login(username, password, clientAddress);
        metrics.login("ok");
        return login;
      } catch (error) {
        const isThrottled = error instanceof BrokerError && error.code === "too_many_attempts";
        metrics.login(isThrottled ? "throttled" : "failed");
        throw error;
      }
    },
  };
}
