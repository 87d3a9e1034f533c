// Streams on Redis. The operation that changes a stream decides whether the change is allowed, and
// operations are queued in the order of the calls. For a personal channel on a Redis Cluster, the
// users' rules are read before an operation is sent, and `streams` and `peers` of both users are
// written before a stream starts. Separate scripts notify the users. A call must not return before
// its changes are replicated as configured.

import { BrokerError, isTransient, type SendRefusal } from "../../../broker/errors.ts";
import { BUCKETS, bucketOf, isSameMediaType } from "../../../broker/log-frame.ts";
import { type ChannelKey, messageTimeMs, STREAM_START } from "../../../broker/model.ts";
import { isCheck, refusePersonSend } from "../../../broker/permissions.ts";
import {
  type ChannelLogStore,
  type ChannelStore,
  MAX_STREAM_ENDS,
  type StreamAppendDraft,
  type StreamAppendResult,
  type StreamCreation,
  type StreamCreationDraft,
  type StreamDraft,
  type StreamResult,
  type StreamStore,
} from "../../../broker/ports.ts";
import { KeyedSequencer } from "../../../lib/keyed-sequencer.ts";
import { usersOf } from "../../../redis/keys.ts";
import {
  decodeStreamHead,
  framesOf,
  isMessages,
  messageIdOf,
  STREAM_STATES,
} from "../../../redis/wire.ts";
import type { OperationReply, Operations } from "../operations.ts";
import type { RedisStorePorts } from "../ports.ts";
import { areUsersApart, otherUser } from "./channel-names.ts";
import { decodeStoredLog } from "./log-head.ts";
import { appendResult, limitOf } from "./logs.ts";
import { refusalOf } from "./permission-tables.ts";
import { publishToUsers } from "./personal.ts";
import { createStreamReads } from "./stream-reads.ts";
import { createStreamSteps } from "./stream-steps.ts";

/**
 * Maximum time by which an event may be in the future. Events with future times occur because nodes
 * only estimate Redis' clock.
 */
const MAX_AHEAD_MS = 1000;
const PAGE = 64;

type StreamPorts = RedisStorePorts & Pick<ChannelStore, "personFacts">;

/**
 * Creates the stream store. A write that rejects with `unavailable` may have taken effect.
 * Repeating it is safe, except for content, tool calls and custom events without their own event
 * id.
 */
export function createRedisStreams(
  ports: StreamPorts,
  operations: Operations,
): StreamStore & ChannelLogStore {
  const { link, clock, steadyClock = clock, waitForReplicas, onError, personFacts } = ports;
  const { keys } = link;
  const steps = createStreamSteps(ports, operations);
  const channelOrder = new KeyedSequencer();
  let reliableSinceMs = steadyClock();
  /**
   * Time (on `steadyClock`), by bucket, of the last event, append or interruption that failed with
   * a transient error.
   */
  const failedMs: number[] = [];
  let mayBeInFuture = true;
  link.onChange((isUp) => {
    if (isUp) reliableSinceMs = steadyClock();
  });
  link.onClockStep((stepMs) => {
    reliableSinceMs = steadyClock();
    mayBeInFuture ||= stepMs < 0;
  });

  /**
   * Applies a change to a stream of a personal channel whose users are in other slots. Reads the
   * users' rules first, and writes their indexes before a stream starts. Changes to the channel's
   * streams keep the order of the calls.
   */
  async function applyApart<Draft extends Sent>(
    draft: Draft,
    isStart: boolean,
    apply: (draft: Draft) => Promise<OperationReply>,
  ): Promise<OperationReply> {
    const { key } = draft;
    const prepare = async () => {
      const refused = await judge(draft);
      if (refused === undefined && isStart) await addToIndexes(key);
      return refused;
    };
    const refused = await channelOrder.enter(key, prepare());
    const reply = await apply({ ...draft, permission: refused ?? "granted" });
    // The channel is added again, because a reader may have removed it before the stream started.
    if (isStart && refused === undefined) await addToIndexes(key);
    return reply;
  }

  /** Applies a change to a stream. Changes to a stream keep the order of the calls. */
  function apply<Draft extends Sent>(
    draft: Draft,
    isStart: boolean,
    step: (draft: Draft) => Promise<OperationReply>,
  ): Promise<OperationReply> {
    return areUsersApart(link, draft.key) ? applyApart(draft, isStart, step) : step(draft);
  }

  async function judge(draft: Sent): Promise<SendRefusal | undefined> {
    const { fromUid, channel, permission = "granted" } = draft;
    if (permission === "granted") return undefined;
    if (!isCheck(permission)) return permission;
    const facts = await personFacts(fromUid, channel.id);
    return refusePersonSend(facts, fromUid, channel.id, permission);
  }

  async function addToIndexes(key: ChannelKey): Promise<void> {
    const users = usersOf(key);
    const nowMs = clock();
    const added = users.map(async (uid) => {
      await Promise.all([
        link.write("sadd", keys.user("streams", uid), key),
        link.write("zadd", keys.user("peers", uid), "GT", nowMs, otherUser(users, uid)),
      ]);
      await waitForReplicas(keys.user("peers", uid));
    });
    await Promise.all(added);
  }

  /**
   * Publishes the frames that the operation could not publish itself. If a stream has ended, also
   * stores the end for its users.
   */
  async function publishRest(
    key: ChannelKey,
    [name, seq = 0, endedMs = 0, ...frames]: Publications,
  ): Promise<void> {
    if (frames.length > 0) await publish(key, frames);
    if (name === undefined || name.length === 0) return;
    await addEnd(key, `${seq}:${name}`, endedMs);
    removeEnded(key, String(name));
  }

  async function finish(key: ChannelKey, reply: OperationReply): Promise<StreamResult> {
    const [result, ...publications] = listOf(reply) as readonly [Buffer, ...Publications];
    await publishRest(key, publications);
    const { verdict, state, refused } = decodeResult(result);
    if (verdict === "too_large") throw new BrokerError("too_large");
    return refused === undefined ? { verdict, state } : { verdict, state, refused };
  }

  /**
   * Adds an end to `endedStreams` of the users. If an earlier failed call has already stored a
   * time, that time is kept.
   */
  async function addEnd(key: ChannelKey, member: string, endedMs: number): Promise<void> {
    const added = usersOf(key).map(async (uid) => {
      const ends = keys.user("endedStreams", uid);
      await Promise.all([
        link.write("zadd", ends, "NX", endedMs, member),
        link.write("zremrangebyrank", ends, 0, -1 - MAX_STREAM_ENDS),
      ]);
    });
    await Promise.all(added);
  }

  async function publish(key: ChannelKey, frames: readonly Buffer[]): Promise<void> {
    const published = frames.map((frame) => {
      const [message] = isMessages(frame) ? framesOf(frame).frames : [];
      const keptAtMs = message && messageTimeMs(messageIdOf(message));
      return publishToUsers(ports, key, frame, keptAtMs);
    });
    await Promise.all(published);
  }

  /** Removes an ended stream from `activeStreams`, so that its end is not published again. */
  function removeEnded(key: ChannelKey, ended: string): void {
    link
      .write("zrem", keys.bucket("activeStreams", bucketOf(key)), ended)
      .catch((error: unknown) =>
        onError(
          error,
          "Could not remove an ended stream from the active streams. Its end will be published again",
        ),
      );
  }

  async function interruptIn(bucket: number, sinceMs: number): Promise<number> {
    const streams = keys.bucket("activeStreams", bucket);
    const range = ["-inf", `(${sinceMs}`, "LIMIT", 0, PAGE];
    for (let count = 0; ; ) {
      const reply = await link.call("zrangebyscore", streams, ...range);
      const names = (reply as readonly Buffer[]).map(String); // the reply of ZRANGEBYSCORE
      const ended = await Promise.all(names.map((name) => interrupt(name, sinceMs)));
      count += ended.filter(Boolean).length;
      if (names.length < PAGE) return count; // only a full page can be followed by another one
    }
  }

  /**
   * Lowers the times in `activeStreams` that are in the future. After a clock was set back, such
   * times would keep streams active.
   */
  async function correctFutureTimes(): Promise<void> {
    mayBeInFuture = false;
    try {
      await Promise.all(Array.from({ length: BUCKETS }, (_, bucket) => correctIn(bucket)));
    } catch (error) {
      mayBeInFuture = true; // the next call tries again
      throw error;
    }
  }

  async function correctIn(bucket: number): Promise<void> {
    const nowMs = clock();
    const streams = keys.bucket("activeStreams", bucket);
    const names = await link.call("zrangebyscore", streams, nowMs + MAX_AHEAD_MS, "+inf");
    for (const name of names as readonly Buffer[])
      await link.write("zadd", streams, "XX", "LT", nowMs, name);
  }

  /**
   * Waits for a producer's call. Records the time of a transient failure, because the producer may
   * then only seem silent.
   */
  async function noteFailure<Reply>(key: ChannelKey, call: Promise<Reply>): Promise<Reply> {
    try {
      return await call;
    } catch (error) {
      if (isTransient(error)) failedMs[bucketOf(key)] = steadyClock();
      throw error;
    }
  }

  /**
   * Interrupts the silent streams of a bucket. Interrupts none if `failedMs` is within the last
   * `silentMs`, because a producer may then only seem silent.
   */
  async function interruptReliably(bucket: number, silentMs: number): Promise<number> {
    const isReliable = steadyClock() - silentMs >= (failedMs[bucket] ?? 0);
    try {
      return await interruptIn(bucket, isReliable ? clock() - silentMs : 0);
    } catch (error) {
      if (isTransient(error)) failedMs[bucket] = steadyClock();
      throw error;
    }
  }

  async function interrupt(name: string, sinceMs: number): Promise<boolean> {
    const at = name.indexOf("\n");
    const [key, clientMsgNo] = [name.slice(0, at), name.slice(at + 1)];
    const reply = await steps.end({ key, clientMsgNo }, sinceMs);
    return (await finish(key, reply)).verdict === "done";
  }

  return {
    async streamEvent(draft) {
      const call = apply(draft, draft.type === STREAM_START, steps.event);
      return finish(draft.key, await noteFailure(draft.key, call));
    },

    async createStream(draft) {
      const reply = await apply(draft, true, steps.create);
      // `stream_create` specifies this reply.
      const [verdict, detail, head, ...publications] = reply as unknown as readonly [
        ...[number, (Buffer | null)[] | number | null, Buffer | null, ...Publications],
      ];
      await publishRest(draft.key, publications);
      return creationOf(draft, { verdict, detail, head });
    },

    async appendToStream(draft) {
      const reply = await noteFailure(draft.key, apply(draft, false, steps.append));
      const [result, ...publications] = listOf(reply) as readonly [Buffer, ...Publications];
      await publishRest(draft.key, publications);
      return appendResultOf(draft, result);
    },

    async cancelStream(key, clientMsgNo) {
      if (areUsersApart(link, key)) await channelOrder.enter(key, Promise.resolve());
      return finish(key, await steps.end({ key, clientMsgNo }));
    },

    /**
     * Ends no stream if, within the last `silentMs`, Redis was unreachable or rejected writes, its
     * clock was set, or this store was created.
     */
    async interruptStreams(silentMs) {
      const corrected = mayBeInFuture ? correctFutureTimes() : undefined;
      corrected?.catch(() => undefined); // the error is thrown where `corrected` is awaited
      if (steadyClock() - silentMs < reliableSinceMs) {
        await corrected;
        return 0;
      }
      const buckets = Array.from({ length: BUCKETS }, (_, bucket) =>
        interruptReliably(bucket, silentMs),
      );
      const counts = await Promise.all(buckets);
      await corrected;
      return counts.reduce((sum, count) => sum + count, 0);
    },

    ...createStreamReads(ports),
  };
}

/** Verdicts of `library/streams.lua`. The index of a verdict is its number. */
const VERDICTS = [
  ...([undefined, "done", "running", "missing", "closed", "taken", "stopped"] as const),
  ...(["too_large", "refused"] as const),
] as const;

/**
 * Frames that the caller must publish, after three elements that describe a stream that has ended:
 * its member of `activeStreams`, the seq of its message, and its end time. The three elements are
 * empty or 0 if no stream has ended. See `library/streams.lua`.
 */
type Publications = readonly [name?: Buffer, seq?: number, endedMs?: number, ...frames: Buffer[]];

type Sent = Pick<StreamDraft, "key" | "channel" | "fromUid" | "permission">;

function listOf(reply: OperationReply): readonly unknown[] {
  return Buffer.isBuffer(reply) ? [reply] : reply;
}

/** Decodes the result of an operation, see `library/streams.lua`. */
function decodeResult(result: Buffer) {
  const verdict = VERDICTS[result[0] ?? 0];
  if (verdict === undefined) throw new BrokerError("internal");
  return {
    verdict,
    state: STREAM_STATES[(result[1] ?? 0) - 1],
    refused: refusalOf(result[2] ?? 0),
  };
}

/** Verdicts of `stream_create`. */
const CREATED = 1;
const EXISTS = 2;
const IS_DELETED = 3;
const FULL = 4;
const TAKEN = 5;
/** Detail of FULL: too many active streams. Every other detail is a verdict of `log_append`. */
const TOO_MANY_STREAMS = 3;

function creationOf(
  draft: StreamCreationDraft,
  reply: {
    readonly verdict: number;
    readonly detail: readonly (Buffer | null)[] | number | null;
    readonly head: Buffer | null;
  },
): StreamCreation {
  const { verdict, detail, head: names } = reply;
  if (verdict === IS_DELETED) return { verdict: "deleted" };
  if (verdict === TAKEN) return { verdict: "taken" };
  if (verdict === FULL && detail === TOO_MANY_STREAMS) return { verdict: "full", limit: "streams" };
  if (verdict === FULL) return { verdict: "full", limit: limitOf(Number(detail)) };
  if (typeof detail === "number") {
    const refused = refusalOf(detail);
    if (refused !== undefined) return { verdict: "refused", refused };
  }
  if (!Array.isArray(detail) || names === null || verdict > EXISTS)
    throw new BrokerError("internal");
  const { head } = decodeStoredLog(detail);
  if (verdict === CREATED) return { verdict: "created", head };
  const isSame =
    isSameMediaType(draft.contentType, head.contentType) &&
    draft.isClosed === (head.closed !== undefined) &&
    decodeStreamHead(names).fromUid === draft.fromUid;
  return isSame ? { verdict: "exists", head } : { verdict: "conflict" };
}

/** Verdicts of `stream_append` in addition to those of `log_append`. */
const REFUSED = 14;
const OTHER_SENDER = 15;
const TOO_LARGE = 16;

function appendResultOf(draft: StreamAppendDraft, result: Buffer): StreamAppendResult {
  const [verdict, detail = 0] = result;
  if (verdict === OTHER_SENDER) return { verdict: "other_sender" };
  if (verdict === TOO_LARGE) throw new BrokerError("too_large");
  if (verdict !== REFUSED) return appendResult(result, draft);
  const refused = refusalOf(detail);
  if (refused === undefined) throw new BrokerError("internal");
  return { verdict: "refused", refused };
}
