// The readers of the crash test. Each is one user that follows its channels live, resumes from its
// last position, and records everything it was shown for the checker.

import { type ChannelRef, channelKey } from "../../src/broker/model.ts";
import type { Push } from "../../src/protocol/protocol.ts";
import type { Broker } from "../support/broker.ts";
import {
  type HistoryChecker,
  liveRange,
  type ObservedRange,
  Reader,
} from "../support/history-checker.ts";
import { connectNative } from "../support/native-client.ts";
import { type NativeClient, textOf } from "../support/native-session.ts";
import type { Random } from "../support/random.ts";
import type { Shutdown } from "./crash-load.ts";
import { TOKEN } from "./crash-names.ts";

interface FollowedChannel {
  readonly channel: ChannelRef;
  readonly reader: Reader;
  /** Last seq that the reader was shown in the channel. */
  seenSeq: number;
}

export class Follower {
  readonly uid: string;
  readonly #followed: ReadonlyMap<string, FollowedChannel>;
  readonly #unchecked: { readonly reader: Reader; readonly range: ObservedRange }[] = [];
  #client: NativeClient | undefined;
  #collectedPushes = 0;

  constructor(uid: string, channels: readonly ChannelRef[]) {
    this.uid = uid;
    this.#followed = new Map(
      channels.map((channel) => {
        const key = channelKey(channel, uid);
        return [key, { channel, reader: new Reader(uid, key), seenSeq: 0 }];
      }),
    );
  }

  /** Connects and resumes every channel from its last seen seq. */
  async connect(broker: Broker): Promise<void> {
    const { uid } = this;
    const port = broker.clientPort;
    const timeoutMs = 30_000;
    const resume = [...this.#followed.values()].map(({ channel, seenSeq: lastSeq }) => ({
      channel,
      lastSeq,
    }));
    this.#client = await connectNative(undefined, {
      ...{ uid, port, timeoutMs, resume, token: TOKEN },
    });
    this.#collectedPushes = 0;
  }

  /**
   * Closes its connection and connects again, repeatedly, until the broker is about to be killed.
   */
  async roam(broker: Broker, shutdown: Shutdown, random: Random): Promise<void> {
    while (!shutdown.isBegun) {
      await new Promise((done) => setTimeout(done, 20 + random.below(80)));
      await this.leave();
      try {
        await this.connect(broker);
      } catch (error) {
        if (!shutdown.isBegun) throw error;
      }
    }
  }

  async leave(): Promise<void> {
    this.#client?.kill();
    await this.#client?.closed;
    this.#collect();
  }

  /** Resolves when the reader was shown every channel up to its head. */
  async untilCaughtUp(heads: ReadonlyMap<string, number>): Promise<void> {
    const isCaughtUp = () => {
      this.#collect();
      return [...this.#followed].every(([key, { seenSeq }]) => seenSeq >= (heads.get(key) ?? 0));
    };
    await this.#client?.waitFor(isCaughtUp, "all channels up to their heads");
  }

  /**
   * Passes everything the reader was shown to the checker. Must be called only when all sent
   * messages are acknowledged.
   */
  check(checker: HistoryChecker): void {
    this.#collect();
    for (const { reader, range } of this.#unchecked.splice(0)) checker.checkRange(reader, range);
    for (const { reader } of this.#followed.values()) checker.checkEnd(reader);
  }

  #collect(): void {
    const pushes = this.#client?.pushes ?? [];
    for (const push of pushes.slice(this.#collectedPushes)) this.#collectPush(push);
    this.#collectedPushes = pushes.length;
  }

  #collectPush(push: Push): void {
    if (push.kind !== "message" && push.kind !== "messages") return;
    const followed = this.#followed.get(channelKey(push.channel, this.uid));
    if (followed === undefined)
      throw new Error("the broker pushed a message for a channel that the reader does not follow");
    const range = observedRangeOf(push);
    followed.seenSeq = Math.max(followed.seenSeq, range.throughSeq);
    this.#unchecked.push({ reader: followed.reader, range });
  }
}

/** Converts a push to a range for the checker. */
export function observedRangeOf(
  push: Extract<Push, { readonly kind: "message" | "messages" }>,
): ObservedRange {
  const readEndedAtMs = Date.now();
  if (push.kind === "message") {
    const { message } = push;
    return liveRange({ ...message, text: textOf(message) }, readEndedAtMs);
  }
  const { afterSeq, throughSeq } = push;
  const messages = push.messages.map((message) => ({
    ...message,
    text: textOf(message),
  }));
  return { afterSeq, throughSeq, messages, readEndedAtMs };
}
