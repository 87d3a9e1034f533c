// Reads streams from Redis, each by one script. Reading a stream that has not changed transfers no
// text and returns the same snapshot: the script receives the version of the cached snapshot and
// replies whether it is still the newest. State: a cache of snapshots, limited by their size.

import type { ChannelKey, StreamSnapshot } from "../../../broker/model.ts";
import type { StreamEnd, StreamStore } from "../../../broker/ports.ts";
import { piecesOf } from "../../../lib/pieces.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import { loadScript } from "../../../redis/script.ts";
import { newestEnds } from "../../newest-ends.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { bucketArgs, channelPieces } from "./channel-pieces.ts";
import { decodeVersioned } from "./stream-record.ts";

const READ = loadScript(lua("stream_read"), lua("snapshot"));
const ACTIVE = loadScript(lua("active_streams"));
const ENDS = loadScript(lua("stream_ends"));
const OFFSET = loadScript(lua("stream_offset"), lua("snapshot"));

const MAX_CACHED_UNITS = 8_000_000;
const CHANNELS_IN_FLIGHT = 128;
/** Maximum number of channels per call. `active_streams.lua` takes 0.2 ms for this number. */
const CHANNELS_PER_CALL = 500;

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

  /** Reads the stream, or the channel's active stream if `clientMsgNo` is "". */
  async function read(key: ChannelKey, clientMsgNo: string): Promise<StreamSnapshot | undefined> {
    const cached = cache.get(key, clientMsgNo);
    const reply = await link.run(
      READ,
      [keys.channel("head", key), keys.channel("activeStream", key)],
      [clientMsgNo, pastMs(), cached?.version ?? ""],
    );
    if (reply === null) return undefined;
    const [shown] = unreadable.decodeReadable([reply], decodeVersioned);
    if (shown === undefined) return undefined;
    const { version, snapshot } = shown;
    return snapshot === undefined ? cached?.snapshot : cache.put({ version, snapshot });
  }

  async function withStream(channels: readonly ChannelKey[]): Promise<readonly ChannelKey[]> {
    const calls = channelPieces(link, channels, CHANNELS_PER_CALL).map(async (piece) => {
      const { tags, args, ordered } = bucketArgs(keys, piece);
      const reply = await link.run(ACTIVE, tags, args);
      const positions = reply as readonly number[]; // see the header of `active_streams.lua`
      return positions.flatMap((position) => ordered[position - 1] ?? []);
    });
    return (await Promise.all(calls)).flat();
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
   * Returns the ended streams in the key `ends`. If `ends` is the key of a group, `group` is its
   * channel key, because the elements of the sorted set do not contain it. If `ends` is the key of
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
      const noAt = group === undefined ? member.indexOf("\n", nameAt) + 1 : nameAt;
      return {
        key: group ?? member.slice(nameAt, noAt - 1),
        clientMsgNo: member.slice(noAt),
        messageSeq: Number.parseInt(member, 10),
        endedMs: Number(endedMs),
      };
    });
  }

  async function indexed(index: string, key: ChannelKey): Promise<StreamSnapshot | undefined> {
    const active = await read(key, "");
    if (active !== undefined) return active;
    await link.write("srem", index, key);
    const started = await read(key, "");
    if (started !== undefined) await link.write("sadd", index, key);
    return started;
  }

  return {
    stream: async (key, clientMsgNo) => (clientMsgNo === "" ? undefined : read(key, clientMsgNo)),

    async activeStreams(channels) {
      const active = channels.length > 1 ? await withStream(channels) : channels;
      const semaphore = new Semaphore(CHANNELS_IN_FLIGHT);
      const streams = await Promise.all(active.map((key) => semaphore.run(() => read(key, ""))));
      return streams.filter((stream) => stream !== undefined);
    },

    async personalStreamsOf(uid) {
      const index = keys.user("streams", uid);
      const reply = await link.call("smembers", index);
      const channels = (reply as readonly Buffer[]).map(String); // the reply of SMEMBERS
      const semaphore = new Semaphore(CHANNELS_IN_FLIGHT);
      const streams = await Promise.all(
        channels.map((key) => semaphore.run(() => indexed(index, key))),
      );
      return streams.filter((stream) => stream !== undefined);
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
      if (!Number.isSafeInteger(index) || index < 0) return undefined;
      const reply = await link.run(
        OFFSET,
        [keys.channel("head", key)],
        [clientMsgNo, index, pastMs()],
      );
      const units = Number(reply);
      return units < 0 ? undefined : units;
    },
  };
}

interface CachedStream {
  readonly version: string;
  readonly snapshot: StreamSnapshot;
}

const ENTRY_UNITS = 500;

class StreamCache {
  readonly #maxUnits: number;
  readonly #entries = new Map<string, CachedStream>();
  /** Name of the stream that was active in each channel when it was last read. */
  readonly #active = new Map<ChannelKey, string>();
  #units = 0;

  constructor(maxUnits: number) {
    this.#maxUnits = maxUnits;
  }

  get(key: ChannelKey, clientMsgNo: string): CachedStream | undefined {
    if (clientMsgNo !== "") return this.#entries.get(nameOf(key, clientMsgNo));
    const name = this.#active.get(key);
    return name === undefined ? undefined : this.#entries.get(name);
  }

  /** Caches and returns a snapshot. Returns the cached one instead if it has the same version. */
  put(read: CachedStream): StreamSnapshot {
    const { key, clientMsgNo, state } = read.snapshot;
    const name = nameOf(key, clientMsgNo);
    const before = this.#entries.get(name);
    if (before?.version === read.version) return before.snapshot;
    if (before !== undefined) this.#remove(name, before);
    this.#entries.set(name, read);
    this.#units += unitsOf(read.snapshot);
    if (state === "active") this.#active.set(key, name);
    for (const [oldest, entry] of this.#entries) {
      if (this.#units <= this.#maxUnits) break;
      this.#remove(oldest, entry);
    }
    return read.snapshot;
  }

  #remove(name: string, { snapshot }: CachedStream): void {
    this.#entries.delete(name);
    this.#units -= unitsOf(snapshot);
    if (this.#active.get(snapshot.key) === name) this.#active.delete(snapshot.key);
  }
}

function nameOf(key: ChannelKey, clientMsgNo: string): string {
  return `${key}\n${clientMsgNo}`;
}

function unitsOf({ text, startData, endData = "", notes }: StreamSnapshot): number {
  let units = ENTRY_UNITS + text.length + startData.length + endData.length;
  for (const { eventId, type, data } of notes) units += eventId.length + type.length + data.length;
  return units;
}
