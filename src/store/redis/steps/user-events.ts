// Builds the arguments of scripts that write user events (`lua/user_feed.lua`). On a Redis Cluster,
// moves the events from a user's outbox to the feed. Keeps no state.

import { BrokerError, isTransient } from "../../../broker/errors.ts";
import { NO_DEMAND } from "../../../broker/event-demand-ports.ts";
import { bucketOf } from "../../../broker/log-frame.ts";
import { userTopic } from "../../../broker/model.ts";
import { idCounterOf } from "../../../redis/id-counters.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { EVENT_CONSTANTS } from "./events.ts";

/** Placed in front of scripts that write user events. */
export const USER_FEED = [EVENT_CONSTANTS, lua("append_event"), lua("user_feed")] as const;
const PUT = loadScript(lua("outbox_put"), EVENT_CONSTANTS, lua("append_event"));
const DONE = loadScript(lua("outbox_done"));
const ANNOUNCE = loadScript(lua("online_announce"));

/** Maximum number of outbox entries that one script moves. */
const MOVED_PER_CALL = 100;
/** Maximum number of times a script's demand is satisfied before the call gives up. */
const MAX_DEMANDS = 3;

/**
 * Precondition that a script demands before it writes events, see `outbox_demand` in
 * `lua/user_feed.lua`.
 */
type OutboxDemand = "announce" | "full";

/** Returns the argument `bucket` of scripts, see `lua/user_feed.lua`. */
export function bucketOfUser(
  { keys, isCluster }: Pick<RedisLink, "keys" | "isCluster">,
  demand: RedisStorePorts["demand"],
  uid: string,
): string {
  if (demand?.feed !== true) return "";
  return isCluster ? "outbox" : keys.bucket("", bucketOf(userTopic(uid)));
}

export function createUserEvents({
  link,
  demand = NO_DEMAND,
  waitForReplicas,
}: Pick<RedisStorePorts, "link" | "demand" | "waitForReplicas">) {
  const { keys, isCluster } = link;
  const singleIds = idCounterOf(link, 0).key;

  const onlineKey = (uid: string) => keys.bucket("online", bucketOf(userTopic(uid)));

  async function announce(uid: string): Promise<void> {
    const online = onlineKey(uid);
    await link.run(ANNOUNCE, [online], [uid]);
    await waitForReplicas(online);
  }

  async function moveOutbox(uid: string): Promise<void> {
    if (!isCluster) return;
    const outbox = keys.user("outbox", uid);
    const bucket = bucketOf(userTopic(uid));
    const ids = idCounterOf(link, bucket);
    const parts = ["feed", "events", "onDemandEvents"].map((part) => keys.bucket(part, bucket));
    const others = ["online", "leaving", `outboxSeen:${uid}`];
    const names = [...parts, ids.key, ...others.map((part) => keys.bucket(part, bucket))];
    for (;;) {
      const reply = await link.call("lrange", outbox, 0, MOVED_PER_CALL - 1);
      const entries = reply as readonly Buffer[];
      if (entries.length === 0) return;
      // Both waits protect against a fail-over of one of the servers. A fail-over must neither undo
      // a change whose event is in the feed, nor lose an event that has left the outbox.
      await waitForReplicas(outbox);
      const last = await link.run(PUT, names, [ids.bucket, uid, ...entries]);
      await waitForReplicas(ids.key);
      await link.run(DONE, [outbox], [String(last), MOVED_PER_CALL]);
      if (entries.length < MOVED_PER_CALL) return;
    }
  }

  /** Satisfies a script's demand, so that the script can be called again. */
  async function satisfy(uid: string, request: OutboxDemand): Promise<void> {
    if (request === "announce") await announce(uid);
    else await moveOutbox(uid);
  }

  return {
    bucketOfUser: (uid: string) => bucketOfUser(link, demand, uid),

    /** Returns the message id counter, and whether session events are written. */
    eventArgs: (): readonly [counter: Arg, onDemand: Arg] => [singleIds, demand.session ? 1 : 0],

    /**
     * Runs a script that may write user events. `demandOf` reads the script's demand from the
     * reply. If there is a demand, satisfies it and calls `run` again. The argument of `run` is 1
     * if this method has already added the user to `online` of the bucket, else 0.
     */
    async runFor<Reply>(
      uid: string,
      run: (isAnnounced: 0 | 1) => Promise<Reply>,
      demandOf: (reply: Reply) => unknown = (reply) => reply,
    ): Promise<Reply> {
      let isAnnounced: 0 | 1 = 0;
      for (let calls = 1; ; calls++) {
        const reply = await run(isAnnounced);
        const request = isCluster ? asDemand(demandOf(reply)) : undefined;
        if (request === undefined) return reply;
        if (calls > MAX_DEMANDS) throw new BrokerError("overloaded");
        await satisfy(uid, request);
        if (request === "announce") isAnnounced = 1;
      }
    },

    /** Moves the events in a user's outbox to the feed. */
    moveOutbox,

    /**
     * Does the same as `moveOutbox`, but ignores transient errors. Must be called after a script
     * that writes user events. If the move fails, the next call for the user or the next check of
     * the user's sessions moves the events.
     */
    async flush(uid: string): Promise<void> {
      if (demand.feed) await unlessTransient(moveOutbox(uid));
    },

    /**
     * Adds a user to `online` of the bucket after a login, because a fail-over may have lost the
     * entry of an announced user. If the call fails, the next login repeats it.
     */
    async relist(uid: string): Promise<void> {
      if (!isCluster || !demand.feed) return;
      await unlessTransient(link.write("zadd", onlineKey(uid), "NX", 0, uid)); // 0: not checked yet
    },
  };
}

/** Waits for a call, and ignores its transient errors, because a later call repeats it. */
async function unlessTransient(call: Promise<unknown>): Promise<void> {
  try {
    await call;
  } catch (error) {
    if (!isTransient(error)) throw error;
  }
}

/** Returns a script's demand, or `undefined` for any other reply. */
function asDemand(reply: unknown): OutboxDemand | undefined {
  if (!Buffer.isBuffer(reply)) return undefined;
  const text = reply.toString("latin1");
  return text === "announce" || text === "full" ? text : undefined;
}
