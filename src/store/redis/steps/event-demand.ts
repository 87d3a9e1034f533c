// Stores in one HASH the time until which readers want each kind of on-demand event. State: this
// node's demand (`demand` of the ports).

import { DEMAND_KINDS, type EventDemandStore } from "../../../broker/event-demand-ports.ts";
import type { RedisStorePorts } from "../ports.ts";

export function createRedisEventDemand({
  link,
  demand,
}: Pick<RedisStorePorts, "link" | "demand">): EventDemandStore {
  const key = link.keys.shared("eventReaders");
  return {
    async setDemand(next) {
      if (demand !== undefined) Object.assign(demand, next);
    },

    async noteReader(kinds, untilMs) {
      await link.write("hset", key, ...kinds.flatMap((kind) => [kind, Math.floor(untilMs)]));
    },

    async readerDemand() {
      const times = (await link.call("hmget", key, ...DEMAND_KINDS)) as readonly (Buffer | null)[];
      const [session = null, command = null] = times;
      return { session: Number(session), command: Number(command) };
    },
  };
}
