// The world of the fault tests: three nodes on one Redis, senders, readers, streams and commands
// spread over them. A driver makes faults; then everything settles and is judged. State: all of
// that.

import { setTimeout as pause } from "node:timers/promises";
import type { Test } from "tap";
import { type ChannelRef, channelKey } from "../../src/broker/model.ts";
import type { Settings } from "../support/broker.ts";
import {
  type Acknowledgement,
  HistoryChecker,
  type ObservedRange,
  Reader,
  type SentMessage,
} from "../support/history-checker.ts";
import { Random } from "../support/random.ts";
import { ClusterCommands } from "./cluster-commands.ts";
import { ClusterNodes } from "./cluster-nodes.ts";
import { ClusterReader, type Temper } from "./cluster-reader.ts";
import { ClusterSender } from "./cluster-sender.ts";
import { ClusterStreams } from "./cluster-streams.ts";
import { judgeHistory, readHistory } from "./history-judge.ts";

const GROUPS = ["alpha", "beta", "gamma"];
const SENDERS = ["http-0", "http-1", "http-2", "socket-0", "socket-1", "socket-2"];
const TEMPERS: readonly Temper[] = ["steady", "watchful", "roaming"];
const READERS = ["reader-0", "reader-1", "reader-2", "reader-3", "reader-4", "reader-5"];
const ACTOR = "actor";
const STAGE: ChannelRef = { id: "stage", type: 2 };
const MOST_PAUSE_MS = 30;
/** Acknowledgements that show that the load has begun. */
const LOAD_BEGUN = 100;
const MOST_BETWEEN_MS = 400;
const WAIT_MS = 120_000;
const LOG_LENGTH = 3000;

const groups: readonly ChannelRef[] = GROUPS.map((id) => ({ id, type: 2 }));
const persons = (uids: readonly string[]): readonly ChannelRef[] =>
  uids.map((id) => ({ id, type: 1 }));

export interface ClusterWorldOptions {
  readonly redisUrl: string;
  readonly seed: number;
  readonly settings?: Settings;
  /** Readers stay where they are: in a fail-over the sockets do. Default: some go. */
  readonly isSteady?: boolean;
  /** No streams and no commands. Default: both. */
  readonly hasOnlyMessages?: boolean;
}

export class ClusterWorld {
  readonly nodes: ClusterNodes;
  readonly checker = new HistoryChecker();
  /** Every acknowledgement, as it came. */
  readonly acks: (SentMessage & Acknowledgement)[] = [];
  readonly readers: readonly ClusterReader[];
  readonly senders: readonly ClusterSender[];
  readonly streams: ClusterStreams;
  readonly commands: ClusterCommands;
  /** Decides about faults alone: a seed means one plan. */
  readonly random: Random;
  readonly #loads: Promise<unknown>[] = [];
  #readings: Promise<unknown> = Promise.resolve();
  #isOver = false;

  private constructor(nodes: ClusterNodes, options: ClusterWorldOptions) {
    const { seed, isSteady = false } = options;
    const random = new Random(seed + 1);
    this.nodes = nodes;
    this.random = new Random(seed);
    this.streams = new ClusterStreams(nodes, seed + 2);
    this.commands = new ClusterCommands(nodes, random);
    const checker = this.#listed();
    const channels = [...groups, ...persons(READERS)];
    this.senders = SENDERS.map((uid) => {
      const kind = uid.startsWith("http") ? "http" : "socket";
      const mostPauseMs = MOST_PAUSE_MS;
      return new ClusterSender(uid, {
        ...{ kind, channels, checker, nodes, random, mostPauseMs },
      });
    });
    this.readers = READERS.map((uid, at) => {
      const temper = isSteady ? "steady" : (TEMPERS[at % 3] ?? "steady");
      const followed = [...groups, ...persons(SENDERS)];
      return new ClusterReader({ uid, temper }, followed, { nodes, random });
    });
  }

  /** Everybody is there and the load has begun. */
  static async open(t: Test, options: ClusterWorldOptions): Promise<ClusterWorld> {
    const { redisUrl, seed, settings = {} } = options;
    t.comment(`seed ${seed}`);
    const random = new Random(seed + 3);
    const nodes = await ClusterNodes.start(t, { redisUrl, random, settings });
    const world = new ClusterWorld(nodes, options);
    t.teardown(() => {
      if (!t.passing()) world.#tellLogs(t);
      return world.#close();
    });
    await world.#begin(options.hasOnlyMessages ?? false);
    return world;
  }

  /**
   * Makes a fault again and again for so long, twice at least. Resolves with how many there were.
   */
  async suffer(seconds: number, fault: () => Promise<void>): Promise<number> {
    const untilMs = Date.now() + seconds * 1000;
    let count = 0;
    do {
      await fault();
      count += 1;
      await pause(this.random.below(MOST_BETWEEN_MS));
    } while (count < 2 || Date.now() < untilMs);
    return count;
  }

  /** Ends the load: everything sent is acknowledged, and all nodes are ready. */
  async settle(): Promise<void> {
    this.#isOver = true;
    await Promise.all(this.#loads);
    await this.nodes.untilReady();
    for (const reader of this.readers) reader.calm();
  }

  /** Judges history as every node shows it, and what every reader was shown. */
  async judge(t: Test): Promise<void> {
    const { checker, readers } = this;
    const heads = await this.judgeHistory();
    for (const reader of readers) await reader.level(heads);
    for (const reader of readers) reader.judge(checker);
    t.same(checker.problems.slice(0, 10), [], "history and what was shown");
    await this.judgeRest(t);
  }

  /** The whole history of all channels as any node shows it. */
  async histories(): Promise<ReadonlyMap<string, ObservedRange>> {
    const call = (path: string) => this.#page(this.nodes.any(), path);
    const found = new Map<string, ObservedRange>();
    for (const key of allKeys()) found.set(key, await readHistory({ call }, { key, afterSeq: 0 }));
    return found;
  }

  /** Gives the heads of all channels. */
  async judgeHistory(): Promise<ReadonlyMap<string, number>> {
    const heads = new Map<string, number>();
    for (let at = 0; at < this.nodes.count; at++) {
      const call = (path: string) => this.#page(at, path);
      for (const key of allKeys()) {
        const reader = new Reader(`history of node ${at}`, key);
        const read = { checker: this.checker, reader };
        heads.set(key, await judgeHistory({ call }, read));
      }
    }
    return heads;
  }

  /** Streams, commands, and who is online. */
  async judgeRest(t: Test): Promise<void> {
    const problems = await this.streams.problems((channel) =>
      channel.type === 2
        ? this.readers.map((reader) => ({ reader, sees: channel }))
        : this.readers
            .filter(({ uid }) => uid === channel.id)
            .map((reader) => ({ reader, sees: { id: ACTOR, type: 1 } })),
    );
    t.same(problems.slice(0, 10), [], "streams");
    const orders = await this.commands.finish();
    t.same(orders.slice(0, 10), [], "commands");
    for (let at = 0; at < this.nodes.count; at++) await this.#untilOnline(at, READERS);
    const failures = this.senders.reduce((sum, one) => sum + one.failures, 0);
    const visits = this.readers.reduce((sum, one) => sum + one.visits, 0);
    t.comment(
      `${this.checker.acknowledgedCount} messages after ${failures} failed tries, ${visits} sessions, ${this.streams.count} streams, ${this.commands.ledger.sentCount} commands`,
    );
  }

  async #begin(hasOnlyMessages: boolean): Promise<void> {
    const { nodes, checker } = this;
    const subscribers = [...SENDERS, ...READERS, ACTOR];
    for (const { id, type } of [...groups, STAGE]) await nodes.createGroup(id, subscribers, type);
    if (!hasOnlyMessages) await this.commands.prepare();
    this.#readings = Promise.all(this.readers.map((reader) => reader.run()));
    const isOver = () => this.#isOver;
    this.#loads.push(...this.senders.map((sender) => sender.run(isOver)));
    if (!hasOnlyMessages) this.#loads.push(...this.#play(isOver));
    for (const one of [this.#readings, ...this.#loads]) one.catch(() => undefined); // `settle` and `#close` tell
    const begun = async () => {
      const deadline = Date.now() + WAIT_MS;
      while (checker.acknowledgedCount < LOAD_BEGUN) {
        if (Date.now() > deadline) throw new Error("nothing is acknowledged");
        await pause(10);
      }
    };
    await begun();
  }

  /** Streams and commands. */
  #play(isOver: () => boolean): readonly Promise<void>[] {
    const stages = [STAGE, ...persons(READERS.slice(0, 2))];
    const plays = stages.map((channel) => this.streams.run({ channel, fromUid: ACTOR }, isOver));
    return [...plays, this.commands.run(isOver)];
  }

  #listed(): Pick<HistoryChecker, "recordSend" | "recordAcknowledgement"> {
    const { checker, acks } = this;
    return {
      recordSend: (sending, nowMs) => checker.recordSend(sending, nowMs),
      recordAcknowledgement(sending, ack, nowMs) {
        acks.push({ ...sending, ...ack });
        checker.recordAcknowledgement(sending, ack, nowMs);
      },
    };
  }

  async #page(at: number, path: string) {
    const { status, body } = await this.nodes.callOf(at, path);
    return { status, body, headers: new Headers() };
  }

  async #untilOnline(at: number, uids: readonly string[]): Promise<void> {
    const deadline = Date.now() + WAIT_MS;
    for (;;) {
      const { body } = await this.nodes.callOf(at, "/user/onlinestatus", uids);
      const off = body.filter((one: { online: number }) => one.online !== 1);
      if (off.length === 0) return;
      if (Date.now() > deadline) throw new Error(`node ${at} sees ${JSON.stringify(off)}`);
      await pause(50);
    }
  }

  /** What the nodes wrote last: the way to what went wrong. */
  #tellLogs(t: Test): void {
    for (let at = 0; at < this.nodes.count; at++)
      t.comment(`node ${at}: ${this.nodes.output(at).slice(-LOG_LENGTH)}`);
  }

  async #close(): Promise<void> {
    this.#isOver = true;
    for (const reader of this.readers) reader.close();
    for (const sender of this.senders) await sender.close();
    await this.#readings;
  }
}

/** Of all channels that are judged. */
export function allKeys(): readonly string[] {
  const pairs = READERS.flatMap((reader) =>
    SENDERS.map((sender) => channelKey({ id: reader, type: 1 }, sender)),
  );
  return [...groups.map((group) => channelKey(group, "")), ...pairs];
}
