// A reader whose nodes and Redis fail: a user who follows channels, connects to any node after the
// connection ends, and resumes at the last position in each channel.

import { setTimeout as pause } from "node:timers/promises";
import { type ChannelRef, channelKey } from "../../src/broker/model.ts";
import {
  type HistoryChecker,
  type ObservedMessage,
  type ObservedRange,
  Reader,
} from "../support/history-checker.ts";
import { connectNative } from "../support/native-client.ts";
import type { NativeClient } from "../support/native-session.ts";
import type { Random } from "../support/random.ts";
import { StreamViews } from "../support/stream-view.ts";
import type { ClusterNodes } from "./cluster-nodes.ts";
import { isRetryable } from "./cluster-sender.ts";
import { observedRangeOf } from "./crash-reader.ts";

/**
 * When a reader closes its connection by itself. A `steady` reader never does. A `watchful` reader
 * leaves a node that does not answer a ping. A `roaming` reader reconnects at random times.
 */
export type ReconnectHabit = "steady" | "watchful" | "roaming";

const CONNECT_MS = 2500;
const PING_MS = 200;
const PONG_MS = 1000;
const CATCH_UP_MS = 120_000;

interface FollowedChannel {
  readonly channel: ChannelRef;
  readonly reader: Reader;
  seenSeq: number;
  /** Highest message id that the reader was shown. */
  seenId: number;
}

export class ClusterReader {
  readonly uid: string;
  readonly habit: ReconnectHabit;
  readonly streams = new StreamViews();
  /** Number of connections opened so far. */
  visits = 0;
  readonly #nodes: ClusterNodes;
  readonly #random: Random;
  readonly #followed: ReadonlyMap<string, FollowedChannel>;
  readonly #ranges: { readonly reader: Reader; readonly range: ObservedRange }[] = [];
  #client: NativeClient | undefined;
  #collectedPushes = 0;
  #isCalm = false;
  #isOver = false;

  constructor(
    { uid, habit }: { readonly uid: string; readonly habit: ReconnectHabit },
    channels: readonly ChannelRef[],
    { nodes, random }: { readonly nodes: ClusterNodes; readonly random: Random },
  ) {
    this.uid = uid;
    this.habit = habit;
    this.#nodes = nodes;
    this.#random = random;
    this.#followed = new Map(
      channels.map((channel) => {
        const key = channelKey(channel, uid);
        const reader = new Reader(`${uid} (${habit})`, key);
        return [key, { channel, reader, seenSeq: 0, seenId: 0 }];
      }),
    );
  }

  /** Returns the messages that the reader was shown in each channel so far, in order. */
  shown(): readonly {
    readonly name: string;
    readonly key: string;
    readonly messages: readonly ObservedMessage[];
  }[] {
    this.#collect();
    return [...this.#followed.values()].map(({ reader }) => {
      const ownRanges = this.#ranges.filter((item) => item.reader === reader);
      const messages = ownRanges.flatMap(({ range }) => range.messages);
      return { name: reader.name, key: reader.key, messages };
    });
  }

  /** Follows the channels until `close`. */
  async run(): Promise<void> {
    while (!this.#isOver) {
      try {
        this.#client = await this.#connect();
      } catch (error) {
        if (!isRetryable(error)) throw error;
        await pause(PING_MS / 4);
        continue;
      }
      this.#collectedPushes = 0;
      this.visits += 1;
      if (!this.#isOver) await this.#stay(this.#client); // `close` may have been called while connecting
      this.#client.kill();
      await this.#client.closed;
      this.#collect();
      this.#client = undefined;
    }
  }

  /** Makes a roaming reader keep its connection from now on. */
  stopRoaming(): void {
    this.#isCalm = true;
  }

  close(): void {
    this.#isOver = true;
    this.#client?.kill();
  }

  /**
   * Resolves when the reader was shown every channel up to its head. Rejects after `CATCH_UP_MS`,
   * naming the channels in which messages are missing.
   */
  async untilCaughtUp(heads: ReadonlyMap<string, number>): Promise<void> {
    const deadline = Date.now() + CATCH_UP_MS;
    for (;;) {
      this.#collect();
      const incomplete = [...this.#followed].filter(
        ([key, { seenSeq }]) => seenSeq < (heads.get(key) ?? 0),
      );
      if (incomplete.length === 0) return;
      if (Date.now() > deadline) {
        const where = incomplete.map(
          ([key, { seenSeq }]) => `${key} ${seenSeq} of ${heads.get(key)}`,
        );
        throw new Error(`${this.uid} (${this.habit}) was shown only ${where.join(", ")}`);
      }
      await pause(10);
    }
  }

  /**
   * Resolves when the reader was shown the newest message of every channel, or after `CATCH_UP_MS`.
   */
  async shownAll(histories: ReadonlyMap<string, ObservedRange>): Promise<void> {
    const newest = [...this.#followed.keys()].flatMap((key) => {
      const last = histories.get(key)?.messages.at(-1);
      return last === undefined ? [] : [last.messageId];
    });
    const deadline = Date.now() + CATCH_UP_MS;
    while (Date.now() < deadline) {
      this.#collect();
      const seen = new Set(
        this.#ranges.flatMap(({ range }) => range.messages.map(({ messageId }) => messageId)),
      );
      if (newest.every((id) => seen.has(id))) return;
      await pause(50);
    }
  }

  /**
   * Passes everything the reader was shown to the checker. Must be called only when all sent
   * messages are acknowledged.
   */
  check(checker: HistoryChecker): void {
    this.#collect();
    for (const { reader, range } of this.#ranges.splice(0)) checker.checkRange(reader, range);
    for (const { reader } of this.#followed.values()) checker.checkEnd(reader);
  }

  /** Returns the text of a stream. Reads the stream from the broker if its end was not pushed. */
  async streamText(channel: ChannelRef, clientMsgNo: string): Promise<string | undefined> {
    const view = () => this.streams.of(channel, clientMsgNo);
    if (view()?.ended !== true) await this.#client?.stream(channel, clientMsgNo);
    return view()?.text;
  }

  async #connect(): Promise<NativeClient> {
    const { uid, streams } = this;
    const followed = [...this.#followed.values()];
    const resume = followed.map(({ channel, seenSeq: lastSeq, seenId: lastId }) => ({
      ...{ channel, lastSeq, lastId },
    }));
    const port = this.#nodes.clientPort;
    const client = await connectNative(undefined, {
      ...{ uid, port, resume, streams, timeoutMs: CONNECT_MS },
    });
    // The seqs of lost messages are reused. A seq above the head in CONNACK will belong to a
    // different message, so the reader must not count it as seen.
    for (const [at, { headSeq, status }] of client.connack.resume.entries()) {
      const channel = followed[at];
      if (channel === undefined || status !== "ok") continue;
      channel.seenSeq = Math.min(channel.seenSeq, headSeq);
    }
    return client;
  }

  /** Resolves when the connection has ended or the reader wants to leave. */
  async #stay(client: NativeClient): Promise<void> {
    const closed = client.closed.then(() => "gone" as const);
    if (this.habit === "steady") return void (await closed);
    for (;;) {
      const waitMs = this.habit === "roaming" ? 100 + this.#random.below(900) : PING_MS;
      if ((await Promise.race([closed, pause(waitMs)])) === "gone") return;
      if (this.habit === "roaming" && !this.#isCalm) return;
      const pong = client.ping().then(
        () => "here",
        () => "gone",
      );
      const timeout = pause(PONG_MS, "gone");
      if ((await Promise.race([pong, timeout])) === "gone") return;
    }
  }

  #collect(): void {
    const pushes = this.#client?.pushes ?? [];
    for (const push of pushes.slice(this.#collectedPushes)) {
      if (push.kind !== "message" && push.kind !== "messages") continue;
      const followed = this.#followed.get(channelKey(push.channel, this.uid));
      if (followed === undefined) continue; // a channel that only carries streams, which are checked separately
      const range = observedRangeOf(push);
      followed.seenSeq = Math.max(followed.seenSeq, range.throughSeq);
      for (const { messageId } of range.messages)
        followed.seenId = Math.max(followed.seenId, messageId);
      this.#ranges.push({ reader: followed.reader, range });
    }
    this.#collectedPushes = pushes.length;
  }
}
