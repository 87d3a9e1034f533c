// Wraps operations of the control plane so that metrics count their results. Keeps no state. The
// caller owns the metrics.

import { BrokerError } from "../broker/errors.ts";
import type { Managers } from "../broker/managers.ts";
import type { Messages } from "../broker/messages.ts";
import type { Streams } from "../broker/streams.ts";
import type { ApiMetrics } from "../observe/metrics.ts";

export function measuredMessages(messages: Messages, metrics: ApiMetrics): Messages {
  const rethrow = countingRefusals(metrics);
  return {
    ...messages,
    async send(input) {
      const startedMs = performance.now();
      const result = await messages.send(input).catch(rethrow);
      metrics.sent(input.channel.type, performance.now() - startedMs);
      return result;
    },
  };
}

/** Counts only rejected events, because the endpoint already counts all calls. */
export function measuredStreams(streams: Streams, metrics: ApiMetrics): Streams {
  const rethrow = countingRefusals(metrics);
  return { ...streams, post: (input) => streams.post(input).catch(rethrow) };
}

/** Returns a function that counts an error of the broker, and throws it again. */
function countingRefusals(metrics: ApiMetrics): (error: unknown) => never {
  return (error) => {
    if (error instanceof BrokerError) metrics.refused(error.code);
    throw error;
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
