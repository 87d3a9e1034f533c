// Streams that are written while nodes and Redis fail. A producer plays one stream after the other
// and repeats each event at any node until it is answered. At the end the stored streams are
// compared with their scripts, and the viewers' texts with the stored streams.

import { setTimeout as pause } from "node:timers/promises";
import type { ChannelRef } from "../../src/broker/model.ts";
import { Random } from "../support/random.ts";
import type { ClusterNodes } from "./cluster-nodes.ts";
import type { ClusterReader } from "./cluster-reader.ts";
import { ScriptedStream } from "./scripted-stream.ts";
import { writeScript } from "./stream-picture.ts";

const EVENT_EVERY_MS = 15;
const CHUNKS = 30;
const MAX_UNITS = 20;

export class ClusterStreams {
  readonly #nodes: ClusterNodes;
  readonly #random: Random;
  readonly #streams: ScriptedStream<Pick<ClusterNodes, "call" | "ok">>[] = [];

  constructor(nodes: ClusterNodes, seed: number) {
    this.#nodes = nodes;
    this.#random = new Random(seed);
  }

  get count(): number {
    return this.#streams.length;
  }

  /** Plays streams until `isOver`. Resolves when the current stream has ended. */
  async run(
    { channel, fromUid }: { channel: ChannelRef; fromUid: string },
    isOver: () => boolean,
  ): Promise<void> {
    const broker = {
      call: (path: string, body?: unknown) => this.#nodes.call(path, body),
      ok: async (path: string, body?: unknown) => {
        await pause(EVENT_EVERY_MS);
        return this.#nodes.ok(path, body);
      },
    };
    while (!isOver()) {
      const random = this.#random;
      const stream = new ScriptedStream({
        ...{ broker, random, channel, fromUid },
        clientMsgNo: `show-${this.#streams.length}`,
        script: writeScript(random, { chunks: CHUNKS, maxUnits: MAX_UNITS }),
      });
      this.#streams.push(stream);
      await stream.play();
    }
  }

  /**
   * Returns how the stored streams differ from their scripts, and the viewers' texts from the
   * stored streams. `viewers` returns the readers of a channel and the channel as each of them
   * addresses it.
   */
  async problems(
    viewers: (channel: ChannelRef) => readonly { reader: ClusterReader; sees: ChannelRef }[],
  ): Promise<readonly string[]> {
    const problems: string[] = [];
    for (const stream of this.#streams) {
      const { channel, clientMsgNo } = stream.options;
      const name = `${channel.id}/${clientMsgNo}`;
      const loss = await stream.storedDifference();
      if (loss !== undefined) problems.push(`${name}: ${loss}`);
      const { text: storedText } = await this.#nodes.ok(stream.path);
      for (const { reader, sees } of viewers(channel)) {
        const text = await reader.streamText(sees, clientMsgNo);
        if (text !== storedText)
          problems.push(`${name} at ${reader.uid}: ${text} is not ${storedText}`);
        for (const problem of reader.streams.of(sees, clientMsgNo)?.problems ?? [])
          problems.push(`${name} at ${reader.uid}: ${problem}`);
      }
    }
    return problems;
  }
}
