// Reads streams from Redis: one step each. A read of a stream that has not changed costs no text
// and gives the same snapshot: Redis gets to know which version is known, and says each time
// whether it is still the newest. State: the streams that were read last, bounded by what they
// hold.

import type { ChannelKey, StreamSnapshot } from "../../../broker/model.ts";
import type { StreamStore } from "../../../broker/ports.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import { loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { decodeShown } from "./stream-record.ts";

const READ = loadScript(lua("stream_read"), lua("snapshot"));
const OFFSET = loadScript(lua("stream_offset"), lua("snapshot"));

const MAX_CACHED_UNITS = 8_000_000;
/** Channels of one user that are asked for at a time. */
const MAX_ASKED = 128;

type StreamReads = Pick<
  StreamStore,
  "stream" | "activeStream" | "personalStreamsOf" | "streamTextOffset"
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

  /** Streams that ended and began then or before are not shown any more, Unix milliseconds. */
  const pastMs = () => (retentionMs === 0 ? -1 : clock() - retentionMs);

  /** The channel's stream of that name, or its active one (""). */
  async function read(key: ChannelKey, clientMsgNo: string): Promise<StreamSnapshot | undefined> {
    const cached = cache.get(key, clientMsgNo);
    const reply = await link.run(
      READ,
      [keys.channel("head", key), keys.channel("activeStream", key)],
      [clientMsgNo, pastMs(), cached?.version ?? ""],
    );
    if (reply === null) return undefined;
    const [found] = unreadable.leaveOut([reply], decodeShown);
    if (found === undefined) return undefined;
    const { version, snapshot } = found;
    return snapshot === undefined ? cached?.snapshot : cache.put({ version, snapshot });
  }

  /**
   * The active stream of a channel that a user's index names. A channel without one is removed, and
   * added again if a stream began meanwhile.
   */
  async function indexed(index: string, key: ChannelKey): Promise<StreamSnapshot | undefined> {
    const found = await read(key, "");
    if (found !== undefined) return found;
    await link.call("srem", index, key);
    const begun = await read(key, "");
    if (begun !== undefined) await link.call("sadd", index, key);
    return begun;
  }

  return {
    stream: async (key, clientMsgNo) => (clientMsgNo === "" ? undefined : read(key, clientMsgNo)),

    activeStream: (key) => read(key, ""),

    async personalStreamsOf(uid) {
      const index = keys.user("streams", uid);
      const reply = await link.call("smembers", index);
      const channels = (reply as readonly Buffer[]).map(String); // Redis' reply
      const semaphore = new Semaphore(MAX_ASKED);
      const found = await Promise.all(
        channels.map((key) => semaphore.run(() => indexed(index, key))),
      );
      return found.filter((stream) => stream !== undefined);
    },

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
  /** No other state of the stream has it. */
  readonly version: string;
  readonly snapshot: StreamSnapshot;
}

/** What a snapshot takes beside its strings, about. */
const ENTRY_UNITS = 500;

/** Who was put in first leaves first. */
class StreamCache {
  readonly #maxUnits: number;
  readonly #entries = new Map<string, CachedStream>();
  /** The one that was active in its channel when it was read last. */
  readonly #active = new Map<ChannelKey, string>();
  #units = 0;

  /** `maxUnits`: UTF-16 units of all strings, about. */
  constructor(maxUnits: number) {
    this.#maxUnits = maxUnits;
  }

  /** Of the channel's stream of that name, or of its active one (""). */
  get(key: ChannelKey, clientMsgNo: string): CachedStream | undefined {
    if (clientMsgNo !== "") return this.#entries.get(nameOf(key, clientMsgNo));
    const name = this.#active.get(key);
    return name === undefined ? undefined : this.#entries.get(name);
  }

  /**
   * Remembers what was read. Returns the one that is remembered: the earlier one if it stood so.
   */
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
