// Removes expired commands from inboxes and writes `command.expired`, while the event feed is on.
// The key `inboxDue` of a bucket contains users with copies in their inboxes, scored by the time
// when the next copy expires. Any node may sweep, and two nodes may sweep at the same time. Keeps
// no state.

import { Semaphore } from "../../../lib/semaphore.ts";
import { loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { INBOX_KEYS, INBOX_LUA, inboxDueKey } from "./command-steps.ts";
import { ALL_BUCKETS, bucketsWithWork, sweepDue } from "./sweep-buckets.ts";
import { createUserEvents } from "./user-events.ts";

const EXPIRE = loadScript(lua("inbox_expire"), ...INBOX_LUA);
const SWEPT = loadScript(lua("inbox_swept"));

const BUCKETS_AT_ONCE = 8;
/** Maximum number of calls for one inbox in a sweep. Each call removes up to 500 copies. */
const MAX_ROUNDS = 100;

/**
 * Creates a function that sweeps the inboxes with expired copies. The function does nothing while
 * the feed is off.
 */
export function createInboxExpiry({
  link,
  clock,
  demand,
  waitForReplicas,
}: Pick<RedisStorePorts, "link" | "clock" | "demand" | "waitForReplicas">): (
  isStopped: () => boolean,
) => Promise<void> {
  const { keys, isCluster } = link;
  const { bucketOfUser, eventArgs, moveOutbox } = createUserEvents({
    ...{ link, demand, waitForReplicas },
  });

  /** Sweeps an inbox. Returns true unless expired copies remain. */
  async function sweepInbox(uid: string, score: string): Promise<boolean> {
    const names = INBOX_KEYS.map((part) => keys.user(part, uid));
    const [counter] = eventArgs();
    let next = "";
    for (let round = 0; round < MAX_ROUNDS; round++) {
      const args = [clock(), uid, bucketOfUser(uid), counter];
      next = String(await link.run(EXPIRE, names, args));
      await moveOutbox(uid);
      if (next === "" || Number(next) > clock()) break;
    }
    if (isCluster) await link.run(SWEPT, [inboxDueKey(keys, uid)], [uid, score, next]);
    return next === "" || Number(next) > clock();
  }

  return async (isStopped) => {
    if (demand?.feed !== true) return;
    const buckets = isCluster
      ? ALL_BUCKETS
      : await bucketsWithWork(link, "inboxDue", [["-inf", `${clock()}`]]);
    const semaphore = new Semaphore(BUCKETS_AT_ONCE);
    const sweeps = buckets.map((bucket) =>
      semaphore.run(() =>
        sweepDue(link, keys.bucket("inboxDue", bucket), {
          nowMs: clock(),
          isStopped: () => isStopped() || demand?.feed !== true,
          process: sweepInbox,
        }),
      ),
    );
    for (const result of await Promise.allSettled(sweeps))
      if (result.status === "rejected") throw result.reason;
  };
}
