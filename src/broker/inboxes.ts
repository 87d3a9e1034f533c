// A user's command inbox as a backend reads it for clients that fetch their commands. What is
// acknowledged is in the store, also for the user's sessions. State: none.

import { assertId } from "./ids.ts";
import type { InboxCommand } from "./model.ts";
import type { InboxStore } from "./ports.ts";

export interface Inboxes {
  /** Commands that were not acknowledged, oldest first. Throws `bad_id`. */
  unread(uid: string, limit: number): Promise<readonly InboxCommand[]>;
  /** Acknowledges all commands through `lastSeq` durably. Throws `bad_id`. */
  acknowledgeThrough(uid: string, lastSeq: number): Promise<void>;
}

/** Commands of one read, and about the bytes of one reply. */
const PAGE = 500;
const MAX_BYTES = 8 * 1024 * 1024;

export function createInboxes(
  store: Pick<InboxStore, "readInbox" | "acknowledgeCommands">,
): Inboxes {
  return {
    async unread(uid, limit) {
      assertId(uid, "uid");
      const found: InboxCommand[] = [];
      let bytes = 0;
      while (found.length < limit && bytes < MAX_BYTES) {
        const page = await store.readInbox(uid, found.at(-1)?.inboxSeq ?? 0, {
          limit: Math.min(PAGE, limit - found.length),
          maxBytes: MAX_BYTES - bytes,
        });
        if (page.length === 0) break;
        for (const { message } of page) bytes += message.payload.length;
        found.push(...page);
      }
      return found;
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
