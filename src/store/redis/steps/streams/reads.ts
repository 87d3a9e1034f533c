// Reads streams from Redis: one step each. State: what was read last.

import type { ChannelKey, StreamSnapshot } from "../../../../broker/model.ts";
import type { StreamStore } from "../../../../broker/stream-ports.ts";
import { Semaphore } from "../../../../lib/semaphore.ts";
import { loadScript, type Script } from "../../../../redis/script.ts";
import type { RedisStoreParts } from "../../parts.ts";
import { StreamCache } from "./cache.ts";
import { decodeShown } from "./record.ts";

const lua = (name: string) => new URL(`../../lua/${name}.lua`, import.meta.url);
const READ = loadScript(lua("stream_read"), lua("snapshot"));
const OFFSET = loadScript(lua("stream_offset"), lua("snapshot"));

export const streamReadScripts: readonly Script[] = [READ, OFFSET];

const MAX_CACHED_UNITS = 8_000_000;
/** Channels of one user that are asked for at a time. */
const MAX_ASKED = 128;

export type StreamReads = Pick<
  StreamStore,
  "stream" | "activeStream" | "personalStreamsOf" | "streamTextOffset"
>;

export function createStreamReads({
  link,
  clock,
  limits,
  unreadable,
}: Pick<
  RedisStoreParts,
  "link" | "clock" | "limits" | "unreadable"
>): StreamReads {
  const { keys } = link;
  const cache = new StreamCache(MAX_CACHED_UNITS);
  const retentionMs = limits.retentionS * 1000;

  /** Streams that ended and began then or before are not shown any more, Unix milliseconds. */
  const pastMs = () => (retentionMs === 0 ? -1 : clock() - retentionMs);

  /** The channel's stream of that name, or its active one (""). */
  async function read(
    key: ChannelKey,
    clientMsgNo: string,
  ): Promise<StreamSnapshot | undefined> {
    const cached = cache.get(key, clientMsgNo);
    const reply = await link.run(
      READ,
      [keys.channel("head", key), keys.channel("act", key)],
      [clientMsgNo, pastMs(), cached?.version ?? ""],
    );
    if (reply === null) return undefined;
    const [found] = unreadable.leaveOut([reply], decodeShown);
    if (found === undefined) return undefined;
    const { version, snapshot } = found;
    return snapshot === undefined
      ? cached?.snapshot
      : cache.put({ version, snapshot });
  }

  /** The active stream of a channel that a user's hints name. A hint that is wrong is taken out, and put back if a stream began meanwhile. */
  async function hinted(
    hints: string,
    key: ChannelKey,
  ): Promise<StreamSnapshot | undefined> {
    const found = await read(key, "");
    if (found !== undefined) return found;
    await link.call("srem", hints, key);
    const begun = await read(key, "");
    if (begun !== undefined) await link.call("sadd", hints, key);
    return begun;
  }

  return {
    stream: async (key, clientMsgNo) =>
      clientMsgNo === "" ? undefined : read(key, clientMsgNo),

    activeStream: (key) => read(key, ""),

    async personalStreamsOf(uid) {
      const hints = keys.user("streams", uid);
      const reply = await link.call("smembers", hints);
      const channels = (reply as readonly Buffer[]).map(String); // Redis' reply
      const line = new Semaphore(MAX_ASKED);
      const found = await Promise.all(
        channels.map((key) => line.run(() => hinted(hints, key))),
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
