// The readers of the crash test: one user each, who follows its channels live, resumes from what it
// has seen, and keeps every run it was shown for the checker. State: the client, the cursors, the
// runs not judged yet.

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
import type { Doom } from "./crash-load.ts";
import { TOKEN } from "./crash-names.ts";

interface Followed {
  readonly channel: ChannelRef;
  readonly reader: Reader;
  /** Through which seq it was shown the channel. */
  seenSeq: number;
}

export class Follower {
  readonly uid: string;
  readonly #followed: ReadonlyMap<string, Followed>;
  readonly #unjudged: { readonly reader: Reader; readonly run: ObservedRange }[] = [];
  #client: NativeClient | undefined;
  #taken = 0;

  constructor(uid: string, channels: readonly ChannelRef[]) {
    this.uid = uid;
    this.#followed = new Map(
      channels.map((channel) => {
        const key = channelKey(channel, uid);
        return [key, { channel, reader: new Reader(uid, key), seenSeq: 0 }];
      }),
    );
  }

  /** Connects and asks for everything after what it has seen. */
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
    this.#taken = 0;
  }

  /** Breaks its connection off and comes back, again and again, until doom is near. */
  async roam(broker: Broker, doom: Doom, random: Random): Promise<void> {
    while (!doom.isNear) {
      await new Promise((go) => setTimeout(go, 20 + random.below(80)));
      await this.leave();
      try {
        await this.connect(broker);
      } catch (error) {
        if (!doom.isNear) throw error;
      }
    }
  }

  async leave(): Promise<void> {
    this.#client?.kill();
    await this.#client?.closed;
    this.#collect();
  }

  /** Resolves when it was shown every channel through its head. */
  async level(heads: ReadonlyMap<string, number>): Promise<void> {
    const isLevel = () => {
      this.#collect();
      return [...this.#followed].every(([key, { seenSeq }]) => seenSeq >= (heads.get(key) ?? 0));
    };
    await this.#client?.waitFor(isLevel, "being level");
  }

  /** Hands everything it was shown to the checker. Everything sent must be acknowledged. */
  judge(checker: HistoryChecker): void {
    this.#collect();
    for (const { reader, run } of this.#unjudged.splice(0)) checker.checkRange(reader, run);
    for (const { reader } of this.#followed.values()) checker.checkEnd(reader);
  }

  #collect(): void {
    const pushes = this.#client?.pushes ?? [];
    for (const push of pushes.slice(this.#taken)) this.#take(push);
    this.#taken = pushes.length;
  }

  #take(push: Push): void {
    if (push.kind !== "message" && push.kind !== "messages") return;
    const followed = this.#followed.get(channelKey(push.channel, this.uid));
    if (followed === undefined) throw new Error("a channel it does not follow");
    const run = runOf(push);
    followed.seenSeq = Math.max(followed.seenSeq, run.throughSeq);
    this.#unjudged.push({ reader: followed.reader, run });
  }
}

/** A push as the checker takes it. */
export function runOf(
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
