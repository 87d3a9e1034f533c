// The port's command inboxes on Redis: which part does which call. No state but that of its parts.

import type { ChannelKey } from "../../broker/model.ts";
import type { InboxStore } from "../../broker/ports.ts";
import { assertFits } from "../command-draft.ts";
import { type CommandCounts, Commands, commandScripts } from "./commands.ts";
import { acknowledge, inboxReadScripts, readInbox } from "./inbox-reads.ts";
import { sweepCommands } from "./inbox-sweep.ts";
import type { RedisStoreParts } from "./parts.ts";

/** What the link must know. */
export const inboxScripts = [...commandScripts, ...inboxReadScripts];

export interface RedisInbox extends InboxStore {
  /**
   * To be awaited before a retry is answered with a first one whose `pub` is 0, which may be a command: finishes it if some recipients may not have
   * it, and lets its event reach the node's listener. Throws as the link does.
   */
  settle(key: ChannelKey, messageId: number): Promise<void>;
  /** Finishes what nodes that are gone left half done, as far as it can be reached. To be called now and then by any node. */
  sweep(isStopped?: () => boolean): Promise<void>;
  readonly counts: CommandCounts;
}

/** Every call throws `unavailable` or `overloaded` as the link does. */
export function createRedisInbox(parts: RedisStoreParts): RedisInbox {
  const commands = new Commands(parts);
  return {
    async appendCommand(draft) {
      assertFits(draft);
      return commands.append(draft);
    },
    readInbox: (uid, afterSeq, page) =>
      readInbox(parts, uid, { afterSeq, ...page }),
    acknowledgeCommands: (uid, inboxSeqs) => acknowledge(parts, uid, inboxSeqs),
    settle: (key, messageId) => commands.settle(key, messageId),
    sweep: (isStopped = () => false) =>
      sweepCommands(parts, {
        isStopped,
        finish: (command, path) => commands.finish(command, path),
      }),
    get counts() {
      return commands.counts;
    },
  };
}
