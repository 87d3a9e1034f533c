// Reads streams from Redis, with one script per stream. A node keeps the events that it has read,
// and a later read transfers only the events after them. Reading a stream that has not changed
// returns the same snapshot object. State: a cache of the events, limited by their size.

import type { ChannelKey, StreamSnapshot } from "../../../broker/model.ts";
import type { StreamEnd, StreamStore } from "../../../broker/ports.ts";
import { piecesOf } from "../../../lib/pieces.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import { loadScript } from "../../../redis/script.ts";
import { newestEnds } from "../../newest-ends.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { bucketArgs, channelPieces } from "./channel-pieces.ts";
import { CachedStream, StreamCache } from "./stream-cache.ts";
import { decodeStreamReply } from "./stream-record.ts";

const READ = loadScript(lua("stream_read"), lua("snapshot"));
const ACTIVE = loadScript(lua("active_streams"));
const ENDS = loadScript(lua("stream_ends"));

const MAX_CACHED_UNITS = 8_000_000;
/** Mark of a reader that has no events, see `CachedStream.mark`. */
const NO_MARK = ["", "", 0, ""] as const;
const CHANNELS_IN_FLIGHT = 128;
/** Maximum number of channels per call. With this number, `active_streams.lua` takes 0.2 ms. */
const CHANNELS_PER_CALL = 500;

interface StreamName {
  readonly key: ChannelKey;
  readonly clientMsgNo: string;
}

type StreamReads = Pick<
  StreamStore,
  | "stream"
  | "activeStreams"
  | "personalStreamsOf"
  | "streamEnds"
  | "personalStreamEnds"
  | "streamTextOffset"
>;

export function createStreamReads({
  link,
  clock,
  limits,
  unreadable,
}: Pick<RedisStorePorts, "link" | "clock" | "limits" | "unreadable">): StreamReads {
  const { keys } = link;
  const cache = new StreamCache(MAX_CACHED_UNITS);
  const retentionMs = limits.retentionS * 1000;

  const pastMs = () => (retentionMs === 0 ? -1 : clock() - retentionMs);

  async function read(key: ChannelKey, clientMsgNo: string): Promise<CachedStream | undefined> {
    for (let cached = cache.get(key, clientMsgNo); ; cached = undefined) {
      const reply = await link.run(
        READ,
        [keys.channel("head", key)],
        [clientMsgNo, pastMs(), ...(cached?.mark ?? NO_MARK), clock()],
      );
      if (reply === null) return undefined;
      const [read] = unreadable.decodeReadable([reply], (fields) => {
        const shown = decodeStreamReply(fields);
        // A stream that was read from its start replaces the cached one.
        const stream = shown.from === 0 ? new CachedStream(shown) : cached;
        return { stream, isComplete: stream?.add(shown) === true };
      });
      if (read?.stream === undefined) return undefined;
      // If events before the reply are missing, the stream is read again from its start.
      if (read.isComplete) return cache.put(read.stream);
    }
  }

  /** Returns the names of the active streams of these channels. */
  async function activeNames(channels: readonly ChannelKey[]): Promise<readonly StreamName[]> {
    const calls = channelPieces(link, channels, CHANNELS_PER_CALL).map(async (piece) => {
      const { tags, args, ordered } = bucketArgs(keys, piece);
      const reply = await link.run(ACTIVE, tags, args);
      // See the header of `active_streams.lua`.
      const active = reply as readonly (readonly [number, readonly Buffer[]])[];
      return active.flatMap(([position, names]) => {
        const key = ordered[position - 1] ?? "";
        return names.map((name) => ({ key, clientMsgNo: String(name) }));
      });
    });
    return (await Promise.all(calls)).flat();
  }

  async function activeIn(channels: readonly ChannelKey[]): Promise<readonly StreamSnapshot[]> {
    const semaphore = new Semaphore(CHANNELS_IN_FLIGHT);
    const names = await activeNames(channels);
    const streams = await Promise.all(
      names.map(({ key, clientMsgNo }) => semaphore.run(() => read(key, clientMsgNo))),
    );
    const snapshots = streams.flatMap((stream) => stream?.snapshot() ?? []);
    // Some streams may have ended after their names were read.
    return snapshots.filter(({ state }) => state === "active");
  }

  async function withEnd(
    channels: readonly ChannelKey[],
    sinceMs: number,
  ): Promise<readonly { readonly key: ChannelKey; readonly newestMs: number }[]> {
    const calls = channelPieces(link, channels, CHANNELS_PER_CALL).map(async (piece) => {
      const { tags, args, ordered } = bucketArgs(keys, piece);
      const reply = (await link.run(ENDS, tags, [sinceMs, ...args])) as readonly (
        | number
        | Buffer
      )[]; // see the header of `stream_ends.lua`
      return ordered.flatMap((_, n) => {
        const key = ordered[Number(reply[2 * n]) - 1];
        return key === undefined ? [] : { key, newestMs: Number(reply[2 * n + 1]) };
      });
    });
    return (await Promise.all(calls)).flat();
  }

  /**
   * Returns the ended streams in the key `ends`. If `ends` belongs to a group, `group` is the
   * group's channel key, which the elements of the sorted set do not contain. If `ends` belongs to
   * a user, `group` is `undefined`.
   */
  async function endsIn(
    ends: string,
    group: ChannelKey | undefined,
    { sinceMs, limit }: { readonly sinceMs: number; readonly limit: number },
  ): Promise<readonly StreamEnd[]> {
    const range = ["+inf", sinceMs, "WITHSCORES", "LIMIT", 0, limit];
    const reply = (await link.call("zrevrangebyscore", ends, ...range)) as readonly Buffer[];
    return [...piecesOf(reply, 2)].map(([memberBytes, endedMs]) => {
      const member = String(memberBytes);
      const nameAt = member.indexOf(":") + 1;
      const clientMsgNoAt = group === undefined ? member.indexOf("\n", nameAt) + 1 : nameAt;
      return {
        key: group ?? member.slice(nameAt, clientMsgNoAt - 1),
        clientMsgNo: member.slice(clientMsgNoAt),
        messageSeq: Number.parseInt(member, 10),
        endedMs: Number(endedMs),
      };
    });
  }

  /**
   * Removes from an index a channel in which no active stream was found. Returns the streams that
   * have started in the channel since then.
   */
  async function dropFrom(index: string, key: ChannelKey): Promise<readonly StreamSnapshot[]> {
    await link.write("srem", index, key);
    const started = await activeIn([key]);
    if (started.length > 0) await link.write("sadd", index, key);
    return started;
  }

  return {
    stream: async (key, clientMsgNo) =>
      clientMsgNo === "" ? undefined : (await read(key, clientMsgNo))?.snapshot(),

    activeStreams: activeIn,

    async personalStreamsOf(uid) {
      const index = keys.user("streams", uid);
      const reply = await link.call("smembers", index);
      const channels = (reply as readonly Buffer[]).map(String); // the reply of SMEMBERS
      if (channels.length === 0) return [];
      const streams = await activeIn(channels);
      const active = new Set(streams.map(({ key }) => key));
      const semaphore = new Semaphore(CHANNELS_IN_FLIGHT);
      const ended = channels.filter((key) => !active.has(key));
      const started = await Promise.all(
        ended.map((key) => semaphore.run(() => dropFrom(index, key))),
      );
      return [...streams, ...started.flat()];
    },

    async streamEnds(channels, sinceMs, limit) {
      const ended = await withEnd(channels, sinceMs);
      return newestEnds(ended, { sinceMs, limit }, async (next, since) => {
        const ends = next.map(({ key }) =>
          endsIn(keys.channel("endedStreams", key), key, { sinceMs: since, limit }),
        );
        return (await Promise.all(ends)).flat();
      });
    },

    personalStreamEnds: (uid, sinceMs, limit) =>
      endsIn(keys.user("endedStreams", uid), undefined, { sinceMs, limit }),

    async streamTextOffset(key, clientMsgNo, index) {
      if (clientMsgNo === "") return undefined;
      return (await read(key, clientMsgNo))?.textOffset(index);
    },
  };
}
