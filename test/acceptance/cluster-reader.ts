// Who reads while nodes and Redis fail: one session that follows its channels, goes to any node
// when its connection ends, and resumes from what it has. State: the client, how far it is per
// channel, the runs not judged yet, its streams.

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
import { runOf } from "./crash-reader.ts";

/**
 * `steady`: stays where it is while it is let. `watchful`: leaves a node that does not answer.
 * `roaming`: breaks off and comes back.
 */
export type Temper = "steady" | "watchful" | "roaming";

const CONNECT_MS = 2500;
const PING_MS = 200;
const PONG_MS = 1000;
const LEVEL_MS = 120_000;

interface Followed {
  readonly channel: ChannelRef;
  readonly reader: Reader;
  seenSeq: number;
  /** The greatest message id it was shown. */
  seenId: number;
}

export class ClusterReader {
  readonly uid: string;
  readonly temper: Temper;
  readonly streams = new StreamViews();
  /** Connections it had. */
  visits = 0;
  readonly #nodes: ClusterNodes;
  readonly #random: Random;
  readonly #followed: ReadonlyMap<string, Followed>;
  readonly #runs: { readonly reader: Reader; readonly run: ObservedRange }[] = [];
  #client: NativeClient | undefined;
  #taken = 0;
  #isCalm = false;
  #isOver = false;

  constructor(
    { uid, temper }: { readonly uid: string; readonly temper: Temper },
    channels: readonly ChannelRef[],
    parts: { readonly nodes: ClusterNodes; readonly random: Random },
  ) {
    this.uid = uid;
    this.temper = temper;
    this.#nodes = parts.nodes;
    this.#random = parts.random;
    this.#followed = new Map(
      channels.map((channel) => {
        const key = channelKey(channel, uid);
        const reader = new Reader(`${uid} (${temper})`, key);
        return [key, { channel, reader, seenSeq: 0, seenId: 0 }];
      }),
    );
  }

  /** What it was shown of each channel so far, in order. */
  shown(): readonly {
    readonly name: string;
    readonly key: string;
    readonly messages: readonly ObservedMessage[];
  }[] {
    this.#collect();
    return [...this.#followed.values()].map(({ reader }) => {
      const mine = this.#runs.filter((one) => one.reader === reader);
      const messages = mine.flatMap(({ run }) => run.messages);
      return { name: reader.name, key: reader.key, messages };
    });
  }

  /** Follows until `close`. */
  async run(): Promise<void> {
    while (!this.#isOver) {
      try {
        this.#client = await this.#connect();
      } catch (error) {
        if (!isRetryable(error)) throw error;
        await pause(PING_MS / 4);
        continue;
      }
      this.#taken = 0;
      this.visits += 1;
      if (!this.#isOver) await this.#stay(this.#client); // `close` may have come while it connected
      this.#client.kill();
      await this.#client.closed;
      this.#collect();
      this.#client = undefined;
    }
  }

  /** It does not leave by itself any more. */
  calm(): void {
    this.#isCalm = true;
  }

  close(): void {
    this.#isOver = true;
    this.#client?.kill();
  }

  /**
   * Resolves once it was shown every channel through its head; rejects when that takes too long,
   * telling what is missing.
   */
  async level(heads: ReadonlyMap<string, number>): Promise<void> {
    const deadline = Date.now() + LEVEL_MS;
    for (;;) {
      this.#collect();
      const behind = [...this.#followed].filter(
        ([key, { seenSeq }]) => seenSeq < (heads.get(key) ?? 0),
      );
      if (behind.length === 0) return;
      if (Date.now() > deadline) {
        const where = behind.map(([key, { seenSeq }]) => `${key} ${seenSeq} of ${heads.get(key)}`);
        throw new Error(`${this.uid} (${this.temper}) has ${where.join(", ")}`);
      }
      await pause(10);
    }
  }

  /** Resolves once it was shown the newest message of every channel, or that took too long. */
  async shownAll(histories: ReadonlyMap<string, ObservedRange>): Promise<void> {
    const newest = [...this.#followed.keys()].flatMap((key) => {
      const last = histories.get(key)?.messages.at(-1);
      return last === undefined ? [] : [last.messageId];
    });
    const deadline = Date.now() + LEVEL_MS;
    while (Date.now() < deadline) {
      this.#collect();
      const seen = new Set(
        this.#runs.flatMap(({ run }) => run.messages.map(({ messageId }) => messageId)),
      );
      if (newest.every((id) => seen.has(id))) return;
      await pause(50);
    }
  }

  /** Hands everything it was shown to the checker. Everything sent must be acknowledged. */
  judge(checker: HistoryChecker): void {
    this.#collect();
    for (const { reader, run } of this.#runs.splice(0)) checker.checkRange(reader, run);
    for (const { reader } of this.#followed.values()) checker.checkEnd(reader);
  }

  /** How a stream stands, asked for where it did not hear of its end. */
  async streamText(channel: ChannelRef, clientMsgNo: string): Promise<string | undefined> {
    const view = () => this.streams.of(channel, clientMsgNo);
    if (view()?.ended !== true) await this.#client?.stream(channel, clientMsgNo);
    return view()?.text;
  }

  async #connect(): Promise<NativeClient> {
    const { uid, streams } = this;
    const all = [...this.#followed.values()];
    const resume = all.map(({ channel, seenSeq: lastSeq, seenId: lastId }) => ({
      ...{ channel, lastSeq, lastId },
    }));
    const port = this.#nodes.clientPort;
    const client = await connectNative(undefined, {
      ...{ uid, port, resume, streams, timeoutMs: CONNECT_MS },
    });
    // Seqs of messages that were lost are given out again behind the head that it is told.
    for (const [at, { headSeq, status }] of client.connack.resume.entries()) {
      const one = all[at];
      if (one === undefined || status !== "ok") continue;
      one.seenSeq = Math.min(one.seenSeq, headSeq);
    }
    return client;
  }

  /** Resolves when the connection is over or it wants to leave. */
  async #stay(client: NativeClient): Promise<void> {
    const gone = client.closed.then(() => "gone" as const);
    if (this.temper === "steady") return void (await gone);
    for (;;) {
      const most = this.temper === "roaming" ? 100 + this.#random.below(900) : PING_MS;
      if ((await Promise.race([gone, pause(most)])) === "gone") return;
      if (this.temper === "roaming" && !this.#isCalm) return;
      const answer = client.ping().then(
        () => "here",
        () => "gone",
      );
      const patience = pause(PONG_MS, "gone");
      if ((await Promise.race([answer, patience])) === "gone") return;
    }
  }

  #collect(): void {
    const pushes = this.#client?.pushes ?? [];
    for (const push of pushes.slice(this.#taken)) {
      if (push.kind !== "message" && push.kind !== "messages") continue;
      const followed = this.#followed.get(channelKey(push.channel, this.uid));
      if (followed === undefined) continue; // a stage: its streams are judged
      const run = runOf(push);
      followed.seenSeq = Math.max(followed.seenSeq, run.throughSeq);
      for (const { messageId } of run.messages)
        followed.seenId = Math.max(followed.seenId, messageId);
      this.#runs.push({ reader: followed.reader, run });
    }
    this.#taken = pushes.length;
  }
}
