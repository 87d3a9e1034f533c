// The port's streams on Redis: what a stream may do next is decided by the step that does it, and
// steps are issued in the order of the calls. On a Redis Cluster the users of a personal channel
// are in other slots: `streams` and `peers` of both are written before a start is issued, and steps
// of their own notify them. Must never answer a call before what it did is replicated as
// configured. State: the calls that wait for a start, since when this node has had Redis.

import { BrokerError } from "../../../broker/errors.ts";
import { type ChannelKey, STREAM_START } from "../../../broker/model.ts";
import type { StreamResult, StreamStore } from "../../../broker/ports.ts";
import { KeyedSequencer } from "../../../lib/keyed-sequencer.ts";
import { BUCKETS, bucketOf, usersOf } from "../../../redis/keys.ts";
import { isMessages, STREAM_STATES } from "../../../redis/wire.ts";
import type { RedisStorePorts } from "../ports.ts";
import { areUsersApart, otherUser } from "./channel-names.ts";
import { publishToUsers } from "./personal.ts";
import { createStreamReads } from "./stream-reads.ts";
import { createStreamSteps } from "./stream-steps.ts";

/** Silent streams of a bucket that are ended at a time. */
const PAGE = 64;

/**
 * Every call throws `unavailable` (a write may have taken effect: the same event again is a retry)
 * or `overloaded` as the link does.
 */
export function createRedisStreams(parts: RedisStorePorts): StreamStore {
  const { link, clock, written, onError } = parts;
  const { keys } = link;
  const steps = createStreamSteps(parts);
  const turns = new KeyedSequencer();
  let reachableSinceMs = clock();
  link.onChange((isUp) => {
    if (isUp) reachableSinceMs = clock();
  });

  /**
   * Runs a step in the order of the calls for the channel: issued at once, or synchronously behind
   * what must be written before it.
   */
  async function inTurn(
    key: ChannelKey,
    isStart: boolean,
    step: () => Promise<unknown>,
  ): Promise<StreamResult> {
    const isApart = areUsersApart(link, key);
    if (isApart) await turns.enter(key, isStart ? addToIndexes(key) : Promise.resolve());
    const reply = await step();
    if (isApart && isStart) await addToIndexes(key); // a reader may have removed the channel just before the start
    return finish(key, reply);
  }

  /**
   * Enters the channel into `streams` of its users, and each into the other's `peers`. Sent at
   * once.
   */
  async function addToIndexes(key: ChannelKey): Promise<void> {
    const users = usersOf(key);
    const nowMs = clock();
    const added = users.flatMap((uid) => [
      link.call("sadd", keys.user("streams", uid), key),
      link.call(
        ...(["zadd", keys.user("peers", uid)] as const),
        ...["GT", nowMs, otherUser(users, uid)],
      ),
    ]);
    await Promise.all(added);
  }

  /**
   * What follows a step, by its reply (`lua/stream_steps.lua`). Throws `too_large`, `unavailable`.
   */
  async function finish(key: ChannelKey, reply: unknown): Promise<StreamResult> {
    const [said, state, ended = "", ...frames] = reply as [
      ...[Buffer, number, Buffer?, ...Buffer[]],
    ]; // Redis' reply
    if (frames.length > 0) await publish(key, frames);
    if (frames.length > 0 && ended.length > 0) notified(key, String(ended));
    await written(keys.channel("head", key));
    const verdict = String(said) as StreamResult["verdict"] | "too_large";
    if (verdict === "too_large") throw new BrokerError("too_large");
    return { verdict, state: STREAM_STATES[state] };
  }

  async function publish(key: ChannelKey, frames: readonly Buffer[]): Promise<void> {
    const atMs = clock();
    const published = frames.map((frame) =>
      publishToUsers(link, key, frame, isMessages(frame) ? atMs : undefined),
    );
    await Promise.all(published);
  }

  /**
   * Takes out a stream that ended. Were it left in, its users would be notified of its end once
   * more.
   */
  function notified(key: ChannelKey, ended: string): void {
    link
      .call("zrem", keys.bucket("activeStreams", bucketOf(key)), ended)
      .catch((error: unknown) => onError(error, "The end of a stream could not be published"));
  }

  /** Ends what was silent in a bucket; returns how many. */
  async function interruptIn(bucket: number, sinceMs: number): Promise<number> {
    const streams = keys.bucket("activeStreams", bucket);
    const range = ["-inf", `(${sinceMs}`, "LIMIT", 0, PAGE];
    for (let count = 0; ; ) {
      const found = await link.call("zrangebyscore", streams, ...range);
      const names = (found as readonly Buffer[]).map(String); // Redis' reply
      const ended = await Promise.all(names.map((n) => interrupt(n, sinceMs)));
      count += ended.filter(Boolean).length;
      if (names.length < PAGE) return count; // each of a page has left the range
    }
  }

  async function interrupt(name: string, sinceMs: number): Promise<boolean> {
    const at = name.indexOf("\n");
    const [key, clientMsgNo] = [name.slice(0, at), name.slice(at + 1)];
    const reply = await steps.end({ key, clientMsgNo }, sinceMs);
    return (await finish(key, reply)).verdict === "done";
  }

  return {
    streamEvent: (draft) =>
      inTurn(draft.key, draft.type === STREAM_START, () => steps.event(draft)),

    cancelStream: (key, clientMsgNo) => inTurn(key, false, () => steps.end({ key, clientMsgNo })),

    /**
     * While Redis was away no producer could be heard, so silence counts from when it came back; so
     * it does where this node began, for all nodes may have been away.
     */
    async interruptStreams(silentSinceMs) {
      if (silentSinceMs < reachableSinceMs) return 0;
      const buckets = Array.from({ length: BUCKETS }, (_, bucket) =>
        interruptIn(bucket, silentSinceMs),
      );
      const counts = await Promise.all(buckets);
      return counts.reduce((sum, count) => sum + count, 0);
    },

    ...createStreamReads(parts),
  };
}
