// Functions that read what a node needs to catch up with publications it missed. No state.

import type { ChannelFeed, DeliveredMark } from "../../redis/channel-feed.ts";
import { bucketOf } from "../../redis/keys.ts";
import { loadScript } from "../../redis/script.ts";
import { lua, type RedisStorePorts } from "./ports.ts";
import { idCounterOf } from "./steps/channel-names.ts";
import { readSlice } from "./steps/history.ts";
import { decodeSnapshot } from "./steps/stream-record.ts";

const POSITION = loadScript(lua("channel_position"), ...["entry", "snapshot"].map(lua));

export function createChannelFeed(
  ports: RedisStorePorts,
): Omit<ChannelFeed, "personalChannelsSince"> {
  const { link, unreadable } = ports;
  return {
    async position(key, { streams, marks }) {
      const keys = [
        ...["head", "log", "activeStream"].map((part) => link.keys.channel(part, key)),
        idCounterOf(link, bucketOf(key)).key,
      ];
      const markArgs = marks.toReversed().flatMap(argsOf);
      const args = [marks.length, ...markArgs, ...streams];
      const reply = await link.run(POSITION, keys, args);
      const [publicationSeq, headSeq, lastId, newestId, lostId, snapshots] = reply as [
        ...[number, number, number, number, number, unknown[]],
      ]; // see the header of `channel_position.lua`
      const readable = unreadable.decodeReadable(snapshots, decodeSnapshot);
      return {
        ...{ publicationSeq, headSeq, lastId, newestId, streams: readable },
        lostFromId: lostId > 0 ? lostId : Number.POSITIVE_INFINITY,
      };
    },
    async publicationSeqOf(key) {
      const head = link.keys.channel("head", key);
      return Number(await link.call("hget", head, "pub")); // a `Buffer`, or null, which becomes 0
    },
    messages: (key, range) => readSlice(ports, key, range),
  };
}

function argsOf({ seq, isStored, messageId }: DeliveredMark): number[] {
  return [isStored ? seq : -seq, messageId];
}
