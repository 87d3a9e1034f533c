// Users who were announced as online, in Redis: a key for each user, and in each bucket an index of
// the users whose events are in the bucket (`lua/user_events.lua`). No state.

import { EVENT_PARTITIONS } from "../../../broker/event-ports.ts";
import type { OnlineStore } from "../../../broker/online-ports.ts";
import { loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { SESSION_CHANGES } from "./sessions.ts";
import { createUserEvents } from "./user-events.ts";

const TAKE = loadScript(lua("online_take"));
const END = loadScript(lua("online_end"), ...SESSION_CHANGES);

const OFFLINE = 1;
const UNKNOWN = -1;
const PRESENT = 2;
const PARTITIONS = Array.from({ length: EVENT_PARTITIONS }, (_, at) => at);

export function createRedisOnlineUsers({
  link,
  demand,
}: Pick<RedisStorePorts, "link" | "demand">): OnlineStore {
  const { keys } = link;
  const { bucketOfUser, eventArgs, flush, forget } = createUserEvents(link, demand);
  const turnKey = keys.shared("onlineTurn");
  return {
    async takeOnline({ limit, turnMs, leftMs, checkedMs }) {
      const isFirst = await link.write("set", turnKey, "1", "NX", "PX", Math.ceil(turnMs));
      if (isFirst === null) return [];
      const share = Math.ceil(limit / EVENT_PARTITIONS);
      const replies = await Promise.all(
        PARTITIONS.map((partition) => {
          const names = ["leaving", "online"].map((part) => keys.bucket(part, partition));
          return link.run(TAKE, names, [share, Math.floor(leftMs), Math.floor(checkedMs)]);
        }),
      );
      return replies.flatMap((uids) => (uids as readonly Buffer[]).map(String));
    },

    async endOnline(uid, deadSessions, leftMs) {
      const args = [uid, bucketOfUser(uid), ...eventArgs(), Math.floor(leftMs), ...deadSessions];
      await flush(uid);
      const verdict = await link.run(END, [keys.user("sessions", uid)], args);
      if (verdict === UNKNOWN) await forget(uid, ["online", "leaving"]);
      else await flush(uid);
      if (verdict === PRESENT) await forget(uid, ["leaving"]);
      return verdict === OFFLINE;
    },
  };
}
