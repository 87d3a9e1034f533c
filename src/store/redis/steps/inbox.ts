// Command inboxes on Redis. State: the commands in progress.

import { BrokerError } from "../../../broker/errors.ts";
import type { InboxCommand } from "../../../broker/model.ts";
import type { InboxStore } from "../../../broker/ports.ts";
import { loadScript } from "../../../redis/script.ts";
import { decodeRecord } from "../../../redis/wire.ts";
import { assertFits, isTooLong } from "../../command-draft.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { INBOX_KEYS, INBOX_LUA } from "./command-steps.ts";
import { Commands } from "./commands.ts";
import { createInboxExpiry } from "./inbox-expiry.ts";
import { createUserEvents } from "./user-events.ts";

const READ = loadScript(lua("inbox_read"), lua("inbox_copies"));
const ACKNOWLEDGE = loadScript(lua("inbox_acknowledge"), ...INBOX_LUA);

const MAX_INBOX_SEQ = 2 ** 48 - 1;
const REMOVED_PER_CALL = 1000;

export type RedisInbox = ReturnType<typeof createRedisInbox>;

export function createRedisInbox(ports: RedisStorePorts) {
  const { link, clock, waitForReplicas, unreadable } = ports;
  const { bucketOfUser, eventArgs, flush } = createUserEvents(ports);
  const commands = new Commands(ports);
  const store: InboxStore = {
    async appendCommand(draft) {
      assertFits(draft);
      return commands.append(draft);
    },

    async readInbox(uid, afterSeq, { limit, maxBytes }) {
      if (isTooLong(uid)) throw new BrokerError("too_large");
      let from = Math.max(0, Math.floor(afterSeq)) + 1;
      while (limit > 0 && from <= MAX_INBOX_SEQ) {
        const args = [clock(), from, limit, maxBytes];
        const key = link.keys.user("inbox", uid);
        const copies = copiesOf(await link.run(READ, [key], args));
        const readable = unreadable.decodeReadable(copies, commandOf);
        const last = copies.at(-1);
        if (readable.length > 0 || last === undefined) return readable;
        // The loop continues, because no copy could be decoded, and an empty result
        // would mean the end of the inbox.
        from = last.inboxSeq + 1;
      }
      // Throws if Redis is unreachable, so that the inbox does not look empty.
      await link.call("ping");
      return [];
    },

    async acknowledgeCommands(uid, inboxSeqs) {
      if (isTooLong(uid)) throw new BrokerError("too_large");
      const seqs = inboxSeqs.filter(
        (seq) => Number.isInteger(seq) && seq >= 1 && seq <= MAX_INBOX_SEQ,
      );
      const keys = INBOX_KEYS.map((part) => link.keys.user(part, uid));
      const [counter] = eventArgs();
      const events = [uid, bucketOfUser(uid), counter];
      const steps: Promise<unknown>[] = [];
      for (let at = 0; at < seqs.length; at += REMOVED_PER_CALL) {
        const batch = seqs.slice(at, at + REMOVED_PER_CALL);
        steps.push(link.run(ACKNOWLEDGE, keys, [clock(), ...events, ...batch]));
      }
      const replies = (await Promise.all(steps)) as readonly (readonly [number, number])[];
      await waitForReplicas(link.keys.user("inbox", uid));
      if (replies.some(([, hasEvents]) => hasEvents === 1)) await flush(uid);
      return replies.reduce((sum, [count]) => sum + count, 0);
    },
  };
  return { ...store, commands, expireInboxes: createInboxExpiry(ports) };
}

interface InboxCopy {
  readonly inboxSeq: number;
  readonly messageId: number;
  readonly record: Buffer;
}

export function copiesOf(reply: unknown): readonly InboxCopy[] {
  const fields = reply as readonly Buffer[]; // see `inbox_copies.lua`
  const copies: InboxCopy[] = [];
  for (let at = 0; at + 2 < fields.length; at += 3) {
    const [seq, id, record] = fields.slice(at, at + 3);
    if (record === undefined) break;
    copies.push({ inboxSeq: Number(seq), messageId: Number(id), record });
  }
  return copies;
}

export function commandOf({ inboxSeq, messageId, record }: InboxCopy): InboxCommand {
  const place = { messageId, messageSeq: inboxSeq };
  return { inboxSeq, message: decodeRecord(record, place) };
}
