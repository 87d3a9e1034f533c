// Reads the data that a node needs to catch up on missed publications.

import { bucketOf } from "../../broker/log-frame.ts";
import type { ChannelKey } from "../../broker/model.ts";
import type {
  ChannelFeed,
  ChannelPosition,
  DeliveredMark,
  StreamTail,
} from "../../redis/channel-feed.ts";
import { idCounterOf } from "../../redis/id-counters.ts";
import { loadScript } from "../../redis/script.ts";
import { lua, type RedisStorePorts } from "./ports.ts";
import { readSlice } from "./steps/history.ts";
import { decodeSnapshot } from "./steps/stream-record.ts";

const POSITION = loadScript(lua("channel_position"), ...["entry", "snapshot"].map(lua));
const POSITIONS = loadScript(lua("channel_positions"), ...["entry", "snapshot"].map(lua));

export function createChannelFeed(
  ports: RedisStorePorts,
): Omit<ChannelFeed, "personalChannelsSince" | "stream"> {
  const { link, unreadable } = ports;
  return {
    async position(key, { streams, marks }) {
      const keys = [
        ...["head", "log", "openStreams"].map((part) => link.keys.channel(part, key)),
        idCounterOf(link, bucketOf(key)).key,
      ];
      const markArgs = marks.toReversed().flatMap(argsOf);
      const args = [marks.length, ...markArgs, ...streams];
      const reply = await link.run(POSITION, keys, args);
      const [publicationSeq, headSeq, lastId, newestId, lostId, snapshots, tails] = reply as [
        ...[number, number, number, number, number, unknown[], TailReply[]],
      ]; // see the header of `channel_position.lua`
      const readable = unreadable.decodeReadable(snapshots, decodeSnapshot);
      return {
        ...{ publicationSeq, headSeq, lastId, newestId, streams: readable },
        otherStreams: tails.map(tailOf),
        lostFromId: lostId > 0 ? lostId : Number.POSITIVE_INFINITY,
      };
    },

    async positions(channels) {
      const [first = ""] = channels;
      const counter = idCounterOf(link, bucketOf(first)).key;
      const heads = channels.map((key) => link.keys.channel("head", key));
      const reply = await link.run(POSITIONS, [counter, ...heads], []);
      // See the header of `channel_positions.lua`.
      const [lastId, ...starts] = reply as [number, ...[number, number, number, TailReply[]][]];
      const lostFromId = Number.POSITIVE_INFINITY;
      const positions = new Map<ChannelKey, ChannelPosition>();
      for (const [at, [publicationSeq, headSeq, newestId, tails]] of starts.entries())
        positions.set(channels[at] ?? "", {
          ...{ publicationSeq, headSeq, lastId, newestId, lostFromId },
          ...{ streams: [], otherStreams: tails.map(tailOf) },
        });
      return positions;
    },

    async publicationSeqOf(key) {
      const head = link.keys.channel("head", key);
      return Number(await link.call("hget", head, "pub")); // a `Buffer`, or null, which becomes 0
    },
    messages: (key, range) => readSlice(ports, key, range),
  };
}

/** A reply of `stream_tail` in `snapshot.lua`. */
type TailReply = readonly [Buffer, number, number];

function tailOf([clientMsgNo, index, textOffset]: TailReply): StreamTail {
  return { clientMsgNo: String(clientMsgNo), index, textOffset };
}

function argsOf({ seq, isStored, messageId }: DeliveredMark): number[] {
  return [isStored ? seq : -seq, messageId];
}
