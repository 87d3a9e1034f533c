// Users who were announced as online, in Redis. Each user has a key, and each bucket has an index
// of the users whose events are in the bucket (`lua/user_events.lua`). State: the bucket that the
// next turn of this node reads first (see `OnlineTerms`).

import { bucketOf } from "../../../broker/log-frame.ts";
import { userTopic } from "../../../broker/model.ts";
import type { OnlineStore } from "../../../broker/online-ports.ts";
import { loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { SESSION_CHANGES } from "./sessions.ts";
import { ALL_BUCKETS } from "./sweep-buckets.ts";
import { createUserEvents } from "./user-events.ts";

const TAKE = loadScript(lua("online_take"));
const END = loadScript(lua("online_end"), ...SESSION_CHANGES);
const FORGET = loadScript(lua("online_forget"));

const OFFLINE = 1;
const PRESENT = 2;
/** Number of buckets that are read at once on a Redis Cluster. */
const BUCKETS_AT_ONCE = 8;

export function createRedisOnlineUsers({
  link,
  demand,
  waitForReplicas,
}: Pick<RedisStorePorts, "link" | "demand" | "waitForReplicas">): OnlineStore {
  const { keys, isCluster } = link;
  const { bucketOfUser, eventArgs, flush, moveOutbox } = createUserEvents({
    ...{ link, demand, waitForReplicas },
  });
  const turnKey = keys.shared("onlineTurn");
  let nextBucket = 0;

  return {
    async takeOnline({ limit, turnMs, leftMs, checkedMs, onFailure }) {
      const isFirst = await link.write("set", turnKey, "1", "NX", "PX", Math.ceil(turnMs));
      if (isFirst === null) return [];
      const take = async (buckets: readonly number[], room: number) => {
        const names = buckets.flatMap((bucket) => [
          ...[keys.bucket("leaving", bucket), keys.bucket("online", bucket)],
        ]);
        const args = [room, Math.floor(leftMs), Math.floor(checkedMs)];
        return ((await link.run(TAKE, names, args)) as readonly Buffer[]).map(String);
      };
      // Each turn starts with a different bucket, so that no bucket is always left out when the
      // limit is reached early.
      const buckets = [...ALL_BUCKETS.slice(nextBucket), ...ALL_BUCKETS.slice(0, nextBucket)];
      nextBucket = (nextBucket + 1) % buckets.length;
      if (!isCluster) return take(buckets, limit);
      const uids: string[] = [];
      for (let at = 0; at < buckets.length && uids.length < limit; at += BUCKETS_AT_ONCE) {
        const group = buckets.slice(at, at + BUCKETS_AT_ONCE);
        const room = limit - uids.length;
        const shares = group.map((_, n) => Math.floor((room + n) / group.length));
        const lists = await Promise.allSettled(
          group.map(async (bucket, n) => (shares[n] ? take([bucket], shares[n]) : [])),
        );
        // A bucket whose server is unreachable must not delay the users of other buckets.
        for (const list of lists)
          if (list.status === "fulfilled") uids.push(...list.value);
          else onFailure?.(list.reason);
      }
      return uids;
    },

    async endOnline(uid, deadSessions, leftMs) {
      const index = (part: "online" | "leaving") => keys.bucket(part, bucketOf(userTopic(uid)));
      const dead = deadSessions.flatMap(({ sessionId, incarnation }) => [sessionId, incarnation]);
      const args = [uid, bucketOfUser(uid), ...eventArgs(), Math.floor(leftMs), ...dead];
      const end = async () =>
        (await link.run(END, [keys.user("sessions", uid)], args)) as [number, number];
      if (!isCluster) return (await end())[0] === OFFLINE;
      const score = await link.call("zscore", index("online"), uid);
      await flush(uid); // the outbox may have entries even if the user is not announced
      const [verdict, isUnknown] = await end();
      await moveOutbox(uid); // if this fails, the user stays in `online`
      // This may also remove a user who leaves during this call. Such a user stays in `online`,
      // where a later turn finds the user.
      if (verdict === PRESENT || isUnknown === 1) await link.write("zrem", index("leaving"), uid);
      if (isUnknown === 1 && score !== null)
        await link.run(FORGET, [index("online")], [uid, score as Buffer]);
      return verdict === OFFLINE;
    },
  };
}
