// What becomes of a message that repeats an earlier one: the first is looked up, and whatever its own call may have left undone is done. No state.

import type { ChannelKey } from "../../broker/model.ts";
import type { ChannelNames } from "./channel-names.ts";
import {
  dedupeKey,
  type First,
  parseFirst,
  type Remembered,
} from "./dedupe.ts";
import type { RedisStoreParts } from "./parts.ts";
import { tellAgain, tellUsers } from "./personal.ts";

export interface RetryParts extends RedisStoreParts {
  /** Resolves once a command that a retry is answered with is with its recipients. */
  readonly settleCommand: (key: ChannelKey, messageId: number) => Promise<void>;
}

export interface Retries {
  /** The first one, if this would be a retry. */
  find(message: Remembered): Promise<First | undefined>;
  /** Resolves once the first one is told where its own step could not. `frame`: what tells of it, made from the retry; only needed if not kept. */
  tell(
    retry: Remembered & { readonly origin?: string | undefined },
    names: ChannelNames,
    first: Omit<First, "more"> & { readonly frame?: () => Buffer },
  ): Promise<void>;
}

/** Every call throws as the link does. */
export function createRetries({
  link,
  clock,
  limits,
  settleCommand,
}: RetryParts): Retries {
  return {
    async find(message) {
      const value = await link.call("get", dedupeKey(link.keys, message));
      if (value === null) return undefined;
      const windowMs = limits.dedupeWindowS * 1000;
      return parseFirst(String(value), clock(), windowMs);
    },

    async tell(retry, names, { messageId, messageSeq, pub, frame }) {
      const { key, origin } = retry;
      if (pub === 0) {
        await settleCommand(key, messageId);
      } else if (names.isApart && messageSeq === 0) {
        if (frame === undefined) return; // it may be lost: nobody has what it said
        await tellUsers(link, key, { frame: frame(), keptAtMs: undefined });
      } else if (names.isApart) {
        const place = { messageId, messageSeq, pub };
        await tellAgain(link, { key, origin, log: names.log, place });
      }
    },
  };
}
