// Stores, in one row, the time until which readers want on-demand events of each kind. State: the
// demand that this process uses.

import {
  type EventDemand,
  type EventDemandStore,
  NO_DEMAND,
} from "../../../broker/event-demand-ports.ts";
import { fieldsOf, transact } from "../engine/database.ts";
import type { Tables } from "../engine/tables.ts";

const READERS = "eventReaders";
const VERSION = 1;

export interface EmbeddedEventDemand extends EventDemandStore {
  /** Demand that decides which on-demand events are written now. */
  readonly current: EventDemand;
}

export function createEventDemand(tables: Tables): EmbeddedEventDemand {
  let current = NO_DEMAND;

  function readers() {
    const [session = 0, command = 0] = fieldsOf(tables.meta.get(READERS) ?? [VERSION], VERSION);
    return { session: Number(session), command: Number(command) };
  }

  return {
    get current() {
      return current;
    },

    async setDemand(demand) {
      current = demand;
    },

    noteReader(kinds, untilMs) {
      // There is only one row, so even a full disk has room for it. With the purpose `store`, this
      // write would fail on a full disk, and a read of the feed fails if this write fails.
      const purpose = "reclaim";
      return transact(
        tables,
        () => {
          const ends = Object.fromEntries(kinds.map((kind) => [kind, untilMs]));
          const times = { ...readers(), ...ends };
          void tables.meta.put(READERS, [VERSION, times.session, times.command]);
        },
        purpose,
      );
    },

    readerDemand: async () => readers(),
  };
}
