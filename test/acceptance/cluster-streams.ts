// Streams that are written while nodes and Redis fail: one producer per stage plays one stream
// after the other, each event until it is answered, by any node. State: the streams played so far.
// What the viewers hold of them is compared with the script and with what is stored.

import { setTimeout as pause } from "node:timers/promises";
import type { ChannelRef } from "../../src/broker/model.ts";
import { Random } from "../support/random.ts";
import type { ClusterNodes } from "./cluster-nodes.ts";
import type { ClusterReader } from "./cluster-reader.ts";
import { writeScript } from "./stream-picture.ts";
import { Show } from "./stream-show.ts";

const EVENT_EVERY_MS = 15;
const CHUNKS = 30;
const MAX_UNITS = 20;

export class ClusterStreams {
  readonly #nodes: ClusterNodes;
  readonly #random: Random;
  readonly #shows: Show<Pick<ClusterNodes, "call" | "ok">>[] = [];

  constructor(nodes: ClusterNodes, seed: number) {
    this.#nodes = nodes;
    this.#random = new Random(seed);
  }

  get count(): number {
    return this.#shows.length;
  }

  /** Plays until `isOver`; resolves when the stream under way then has ended. */
  async run(
    { channel, fromUid }: { channel: ChannelRef; fromUid: string },
    isOver: () => boolean,
  ): Promise<void> {
    const stage = {
      call: (path: string, body?: unknown) => this.#nodes.call(path, body),
      ok: async (path: string, body?: unknown) => {
        await pause(EVENT_EVERY_MS);
        return this.#nodes.ok(path, body);
      },
    };
    while (!isOver()) {
      const random = this.#random;
      const show = new Show({
        ...{ stage, random, channel, fromUid },
        clientMsgNo: `show-${this.#shows.length}`,
        script: writeScript(random, { chunks: CHUNKS, maxUnits: MAX_UNITS }),
      });
      this.#shows.push(show);
      await show.play();
    }
  }

  /**
   * What is wrong with what is stored, and with what the viewers hold. `viewers`: who sees a stage,
   * and how it names it.
   */
  async problems(
    viewers: (channel: ChannelRef) => readonly { reader: ClusterReader; sees: ChannelRef }[],
  ): Promise<readonly string[]> {
    const problems: string[] = [];
    for (const show of this.#shows) {
      const { channel, clientMsgNo } = show.parts;
      const what = `${channel.id}/${clientMsgNo}`;
      const loss = await show.lossOf();
      if (loss !== undefined) problems.push(`${what}: ${loss}`);
      const { text } = await this.#nodes.ok(show.path);
      for (const { reader, sees } of viewers(channel)) {
        const held = await reader.streamText(sees, clientMsgNo);
        if (held !== text) problems.push(`${what} at ${reader.uid}: ${held} is not ${text}`);
        for (const problem of reader.streams.of(sees, clientMsgNo)?.problems ?? [])
          problems.push(`${what} at ${reader.uid}: ${problem}`);
      }
    }
    return problems;
  }
}
