// Reads and acknowledges the commands in inboxes, for backends whose clients fetch their commands
// over HTTP.

import { assertId } from "./ids.ts";
import type { InboxCommand } from "./model.ts";
import type { InboxStore } from "./ports.ts";

export interface Inboxes {
  /** Returns fewer than `limit` commands if their payloads exceed about 8 MiB. Throws `bad_id`. */
  unread(uid: string, limit: number): Promise<readonly InboxCommand[]>;
  acknowledgeThrough(uid: string, lastSeq: number): Promise<void>;
}

const PAGE = 500;
/**
 * Maximum number of payload bytes in one reply. The last command is returned even if it takes the
 * reply above this limit.
 */
const MAX_BYTES = 8 * 1024 * 1024;

export function createInboxes(
  store: Pick<InboxStore, "readInbox" | "acknowledgeCommands">,
): Inboxes {
  return {
    async unread(uid, limit) {
      assertId(uid, "uid");
      const commands: InboxCommand[] = [];
      let bytes = 0;
      while (commands.length < limit && bytes < MAX_BYTES) {
        const page = await store.readInbox(uid, commands.at(-1)?.inboxSeq ?? 0, {
          limit: Math.min(PAGE, limit - commands.length),
          maxBytes: MAX_BYTES - bytes,
        });
        if (page.length === 0) break;
        for (const { message } of page) bytes += message.payload.length;
        commands.push(...page);
      }
      return commands;
    },

    async acknowledgeThrough(uid, lastSeq) {
      assertId(uid, "uid");
      for (let after = 0; after < lastSeq; ) {
        const page = await store.readInbox(uid, after, {
          limit: PAGE,
          maxBytes: MAX_BYTES,
        });
        const seqs = page.map(({ inboxSeq }) => inboxSeq).filter((seq) => seq <= lastSeq);
        if (seqs.length === 0) return;
        await store.acknowledgeCommands(uid, seqs);
        after = page.at(-1)?.inboxSeq ?? lastSeq;
      }
    },
  };
}
