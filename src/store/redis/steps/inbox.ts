// The port's command inboxes on Redis. No state but that of the commands on their way.

import { BrokerError } from "../../../broker/errors.ts";
import type { InboxCommand } from "../../../broker/model.ts";
import type { InboxStore } from "../../../broker/ports.ts";
import { loadScript } from "../../../redis/script.ts";
import { decodeRecord } from "../../../redis/wire.ts";
import { assertFits, isTooLong } from "../../command-draft.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { Commands } from "./commands.ts";

const READ = loadScript(lua("inbox_read"));
const ACKNOWLEDGE = loadScript(lua("inbox_acknowledge"), lua("inbox"));

const MAX_INBOX_SEQ = 2 ** 48 - 1;
/** Copies taken out in one step. */
const TAKEN = 1000;

export type RedisInbox = ReturnType<typeof createRedisInbox>;

/** Every call throws `unavailable` or `overloaded` as the link does. */
export function createRedisInbox(parts: RedisStorePorts) {
  const { link, clock, written, unreadable } = parts;
  const commands = new Commands(parts);
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
        const found = unreadable.leaveOut(copies, commandOf);
        const last = copies.at(-1);
        if (found.length > 0 || last === undefined) return found;
        from = last.inboxSeq + 1; // no copy is the end only where none is left
      }
      await link.ping(); // an inbox that cannot be reached is not an empty one
      return [];
    },

    async acknowledgeCommands(uid, inboxSeqs) {
      if (isTooLong(uid)) throw new BrokerError("too_large");
      const seqs = inboxSeqs.filter(
        (seq) => Number.isInteger(seq) && seq >= 1 && seq <= MAX_INBOX_SEQ,
      );
      const keys = ["inbox", "inboxExpiry"].map((part) => link.keys.user(part, uid));
      const steps: Promise<unknown>[] = [];
      for (let at = 0; at < seqs.length; at += TAKEN) {
        const some = seqs.slice(at, at + TAKEN);
        steps.push(link.run(ACKNOWLEDGE, keys, [clock(), ...some]));
      }
      const counts = await Promise.all(steps);
      await written(keys[0]);
      return counts.reduce<number>((sum, count) => sum + Number(count), 0);
    },
  };
  return { ...store, commands };
}

interface Copy {
  readonly inboxSeq: number;
  readonly messageId: number;
  readonly record: Buffer;
}

/** Of the reply of `lua/inbox_read.lua`. */
function copiesOf(reply: unknown): readonly Copy[] {
  const fields = reply as readonly Buffer[]; // as its header says
  const copies: Copy[] = [];
  for (let at = 0; at + 2 < fields.length; at += 3) {
    const [seq, id, record] = fields.slice(at, at + 3);
    if (record === undefined) break;
    copies.push({ inboxSeq: Number(seq), messageId: Number(id), record });
  }
  return copies;
}

function commandOf({ inboxSeq, messageId, record }: Copy): InboxCommand {
  const place = { messageId, messageSeq: inboxSeq };
  return { inboxSeq, message: decodeRecord(record, place) };
}
