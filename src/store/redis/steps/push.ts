// Stores in Redis the data for deciding which users need a push notification: read positions of
// members, recent acknowledgements, and a cursor in the slot of each bucket. Keeps no state.

import type { EventPosition } from "../../../broker/event-ports.ts";
import type { PushStore } from "../../../broker/push-ports.ts";
import { idCounterOf } from "../../../redis/id-counters.ts";
import type { Keys } from "../../../redis/keys.ts";
import { loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { EVENT_LUA } from "./events.ts";

const READ_SEQS = loadScript(lua("read_seqs"), lua("positions"));
const CLAIM = loadScript(lua("push_claim"));
const ADD_ACKNOWLEDGED = loadScript(lua("acknowledged_add"));
const MOVE = loadScript(lua("push_move"), ...EVENT_LUA);

const MAX_UIDS = 1000;

export const pushKey = (keys: Keys, partition: number): string => keys.bucket("push", partition);

/** Returns the fields that a bucket's key `push` has until a lease claims the cursor. */
export function pushFields({ number, id }: EventPosition): readonly string[] {
  return ["number", `${number}`, "id", `${id}`];
}

export function createRedisPush({
  link,
  waitForReplicas,
}: Pick<RedisStorePorts, "link" | "waitForReplicas">): PushStore {
  const { keys } = link;

  return {
    async readSeqs(key, uids) {
      const names = ["head", "positions", "joinSeqs"].map((part) => keys.channel(part, key));
      const replies: Promise<unknown>[] = [];
      for (let at = 0; at < uids.length; at += MAX_UIDS)
        replies.push(link.run(READ_SEQS, names, uids.slice(at, at + MAX_UIDS)));
      return (await Promise.all(replies)).flat() as number[]; // see the header of `read_seqs.lua`
    },

    async addAcknowledged(messages, ttlMs) {
      await Promise.all(
        messages.map(async ({ key, messageSeq, uids }) => {
          const names = [keys.channel("acknowledged", key, `${messageSeq}`)];
          const ttl = Math.ceil(ttlMs);
          for (let at = 0; at < uids.length; at += MAX_UIDS)
            await link.run(ADD_ACKNOWLEDGED, names, [ttl, ...uids.slice(at, at + MAX_UIDS)]);
        }),
      );
    },

    async acknowledgedBy(key, messageSeqs) {
      const replies = await Promise.all(
        messageSeqs.map((seq) =>
          link.call("smembers", keys.channel("acknowledged", key, `${seq}`)),
        ),
      );
      return replies.map((uids) => new Set((uids as readonly Buffer[]).map(String)));
    },

    async claimPushCursor(partition, { token }) {
      const names = [pushKey(keys, partition), keys.bucket("feed", partition)];
      const reply = await link.run(CLAIM, names, [token]);
      if (reply === null) return undefined;
      const [number, id] = reply as readonly Buffer[]; // see the header of `push_claim.lua`
      return { number: Number(number), id: Number(id) };
    },

    async movePushCursor(partition, { lease, from, to, events }) {
      const ids = idCounterOf(link, partition);
      const feedKeys = ["feed", "events"].map((part) => keys.bucket(part, partition));
      const moved = await link.run(
        MOVE,
        [pushKey(keys, partition), ...feedKeys, ids.key],
        [
          ...[lease.token, from.number, from.id, to.number, to.id],
          ...events.flatMap(({ key, messageSeq, fields }) => [
            ...[key, messageSeq, JSON.stringify(fields)],
          ]),
          ...[ids.bucket, ""],
        ],
      );
      await waitForReplicas(pushKey(keys, partition));
      return moved === 1;
    },
  };
}
