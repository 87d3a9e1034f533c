// Events of users. Builds the arguments of scripts that write them (`lua/user_events.lua`), and on
// a Redis Cluster moves them from the outbox of a user to the feed. No state.

import { isTransient } from "../../../broker/errors.ts";
import { NO_DEMAND } from "../../../broker/event-demand-ports.ts";
import { bucketOf } from "../../../broker/log-frame.ts";
import { userTopic } from "../../../broker/model.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { idCounterOf } from "./channel-names.ts";
import { EVENT_CONSTANTS } from "./events.ts";

const PUT = loadScript(lua("outbox_put"), EVENT_CONSTANTS, lua("append_event"));
const DONE = loadScript(lua("outbox_done"));

export function createUserEvents(link: RedisLink, demand: RedisStorePorts["demand"] = NO_DEMAND) {
  const { keys, isCluster } = link;
  const singleIds = idCounterOf(link, 0).key;
  const usesOutbox = () => isCluster && demand.feed;

  async function move(uid: string): Promise<void> {
    const outbox = keys.user("outbox", uid);
    const entries = (await link.call("lrange", outbox, 0, -1)) as readonly Buffer[];
    if (entries.length === 0) return;
    const bucket = bucketOf(userTopic(uid));
    const ids = idCounterOf(link, bucket);
    const parts = ["feed", "events", "onDemandEvents"].map((part) => keys.bucket(part, bucket));
    const others = ["online", "leaving", `outboxSeen:${uid}`];
    const names = [...parts, ids.key, ...others.map((part) => keys.bucket(part, bucket))];
    const last = await link.run(PUT, names, [ids.bucket, uid, ...entries]);
    await link.run(DONE, [outbox], [String(last)]);
  }

  return {
    /**
     * Returns the beginning of the key names of the bucket for the user's events, `outbox` if that
     * bucket is in another slot, "" if the feed is off.
     */
    bucketOfUser(uid: string): string {
      if (!demand.feed) return "";
      return isCluster ? "outbox" : keys.bucket("", bucketOf(userTopic(uid)));
    },

    /** Returns the counter of message ids, and whether the events of sessions are written. */
    eventArgs: (): readonly [counter: Arg, onDemand: Arg] => [singleIds, demand.session ? 1 : 0],

    /**
     * Must be called before a login, and before a script that writes events of a user who may be
     * offline. If this node dies, another node that checks the sessions of users then finds this
     * user and moves the events in the outbox.
     */
    async announce(uid: string): Promise<void> {
      if (!usesOutbox()) return;
      const key = keys.bucket("online", bucketOf(userTopic(uid)));
      await link.write("zadd", key, "NX", Date.now(), uid);
    },

    /**
     * Moves the events of a user to the feed. Must be called after a script that writes events. If
     * that fails, the next call for the user or the next check of the sessions does.
     */
    async flush(uid: string): Promise<void> {
      if (!usesOutbox()) return;
      try {
        await move(uid);
      } catch (error) {
        if (!isTransient(error)) throw error;
      }
    },

    /** Removes a user from indexes of the bucket. */
    async forget(uid: string, indexes: readonly ("online" | "leaving")[]): Promise<void> {
      if (!isCluster) return; // the script has removed the user
      for (const index of indexes)
        await link.write("zrem", keys.bucket(index, bucketOf(userTopic(uid))), uid);
    },
  };
}
