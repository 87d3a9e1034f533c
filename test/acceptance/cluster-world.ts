// The set-up of the fault tests: three nodes on one Redis, with senders, readers, streams and
// commands spread over them. A test injects faults, ends the load, and then checks history and
// everything the readers were shown.

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
import { IS_FULL } from "../support/volume.ts";
import { ClusterCommands } from "./cluster-commands.ts";
import { ClusterNodes, type ClusterNodesOptions } from "./cluster-nodes.ts";
import { ClusterReader, type ReconnectHabit } from "./cluster-reader.ts";
import { ClusterSender } from "./cluster-sender.ts";
import { ClusterStreams } from "./cluster-streams.ts";
import { checkHistory, readHistory } from "./history-check.ts";

const GROUPS = ["alpha", "beta", "gamma"];
const SENDERS = ["http-0", "http-1", "http-2", "socket-0", "socket-1", "socket-2"];
const HABITS: readonly ReconnectHabit[] = ["steady", "watchful", "roaming"];
const READERS = ["reader-0", "reader-1", "reader-2", "reader-3", "reader-4", "reader-5"];
const ACTOR = "actor";
const STREAM_CHANNEL: ChannelRef = { id: "stage", type: 2 };
/** Maximum number of milliseconds between two messages of a sender. */
const MAX_PAUSE_MS = IS_FULL ? 30 : 90;
/** Number of acknowledgements after which the load counts as running. */
const LOAD_RUNNING = 100;
const MAX_BETWEEN_MS = 400;
const WAIT_MS = 120_000;
/** Number of characters of a node's output that are printed after a failure. */
const LOG_LENGTH = 3000;
/** Number of errors of a node that are printed after a failure. */
const MAX_ERRORS = 10;

const groups: readonly ChannelRef[] = GROUPS.map((id) => ({ id, type: 2 }));
const persons = (uids: readonly string[]): readonly ChannelRef[] =>
  uids.map((id) => ({ id, type: 1 }));

export interface ClusterWorldOptions {
  readonly redisUrl: string;
  readonly seed: number;
  readonly settings?: Settings;
  /** Number of nodes, and how they are started. */
  readonly nodes?: Omit<ClusterNodesOptions, "redisUrl" | "random" | "settings">;
  /**
   * True if readers never close their connections by themselves. By default, some readers close
   * them.
   */
  readonly keepsConnections?: boolean;
  /** True if the load has no streams and no commands. By default, it has both. */
  readonly hasOnlyMessages?: boolean;
}

export class ClusterWorld {
  readonly nodes: ClusterNodes;
  readonly checker = new HistoryChecker();
  /** All acknowledgements in the order of arrival. */
  readonly acks: (SentMessage & Acknowledgement)[] = [];
  readonly readers: readonly ClusterReader[];
  readonly senders: readonly ClusterSender[];
  readonly streams: ClusterStreams;
  readonly commands: ClusterCommands;
  /** Random source used only for faults, so that a seed always leads to the same faults. */
  readonly random: Random;
  readonly #loads: Promise<unknown>[] = [];
  #reading: Promise<unknown> = Promise.resolve();
  #isOver = false;

  private constructor(nodes: ClusterNodes, options: ClusterWorldOptions) {
    const { seed, keepsConnections = false } = options;
    const random = new Random(seed + 1);
    this.nodes = nodes;
    this.random = new Random(seed);
    this.streams = new ClusterStreams(nodes, seed + 2);
    this.commands = new ClusterCommands(nodes, random);
    const checker = this.#recordingChecker();
    const channels = [...groups, ...persons(READERS)];
    this.senders = SENDERS.map((uid) => {
      const kind = uid.startsWith("http") ? "http" : "socket";
      const maxPauseMs = MAX_PAUSE_MS;
      return new ClusterSender(uid, {
        ...{ kind, channels, checker, nodes, random, maxPauseMs },
      });
    });
    this.readers = READERS.map((uid, at) => {
      const habit = keepsConnections ? "steady" : (HABITS[at % 3] ?? "steady");
      const followed = [...groups, ...persons(SENDERS)];
      return new ClusterReader({ uid, habit }, followed, { nodes, random });
    });
  }

  /** Starts the nodes and the load. Resolves when messages are being acknowledged. */
  static async open(t: Test, options: ClusterWorldOptions): Promise<ClusterWorld> {
    const { redisUrl, seed, settings = {} } = options;
    t.comment(`seed ${seed}`);
    const random = new Random(seed + 3);
    const nodes = await ClusterNodes.start(t, { ...options.nodes, redisUrl, random, settings });
    const world = new ClusterWorld(nodes, options);
    t.teardown(() => {
      if (!t.passing()) world.#printLogs(t);
      return world.close();
    });
    await world.#begin(options.hasOnlyMessages ?? false);
    return world;
  }

  /** Repeats the fault for `seconds`, at least twice. Returns the number of faults. */
  async injectFaults(seconds: number, fault: () => Promise<void>): Promise<number> {
    const untilMs = Date.now() + seconds * 1000;
    let count = 0;
    do {
      await fault();
      count += 1;
      await pause(this.random.below(MAX_BETWEEN_MS));
    } while (count < 2 || Date.now() < untilMs);
    return count;
  }

  /** Ends the load. Resolves when every message sent is acknowledged and all nodes are ready. */
  async settle(): Promise<void> {
    this.#isOver = true;
    await Promise.all(this.#loads);
    await this.nodes.untilReady();
    for (const reader of this.readers) reader.stopRoaming();
  }

  /** Checks the history of every node and everything each reader was shown. */
  async check(t: Test): Promise<void> {
    const { checker, readers } = this;
    const heads = await this.checkHistories();
    for (const reader of readers) await reader.untilCaughtUp(heads);
    for (const reader of readers) reader.check(checker);
    t.same(
      checker.problems.slice(0, 10),
      [],
      "history and the messages shown to readers are complete",
    );
    await this.checkRest(t);
  }

  /** Returns the complete history of each channel, read from random nodes. */
  async histories(): Promise<ReadonlyMap<string, ObservedRange>> {
    const call = (path: string) => this.#page(this.nodes.anyNode(), path);
    const histories = new Map<string, ObservedRange>();
    for (const key of allKeys())
      histories.set(key, await readHistory({ call }, { key, afterSeq: 0 }));
    return histories;
  }

  /** Checks the history of every channel on every node. Returns the head of each channel. */
  async checkHistories(): Promise<ReadonlyMap<string, number>> {
    const heads = new Map<string, number>();
    for (let at = 0; at < this.nodes.count; at++) {
      const call = (path: string) => this.#page(at, path);
      for (const key of allKeys()) {
        const reader = new Reader(`history of node ${at}`, key);
        const read = { checker: this.checker, reader };
        heads.set(key, await checkHistory({ call }, read));
      }
    }
    return heads;
  }

  /** Checks streams, commands and the online status of the readers. */
  async checkRest(t: Test): Promise<void> {
    const problems = await this.streams.problems((channel) =>
      channel.type === 2
        ? this.readers.map((reader) => ({ reader, sees: channel }))
        : this.readers
            .filter(({ uid }) => uid === channel.id)
            .map((reader) => ({ reader, sees: { id: ACTOR, type: 1 } })),
    );
    t.same(problems.slice(0, 10), [], "every viewer has the text of every stream");
    const commandProblems = await this.commands.finish();
    t.same(commandProblems.slice(0, 10), [], "every command was shown and acknowledged");
    for (let at = 0; at < this.nodes.count; at++) await this.#untilOnline(at, READERS);
    const failures = this.senders.reduce((sum, sender) => sum + sender.failures, 0);
    const visits = this.readers.reduce((sum, reader) => sum + reader.visits, 0);
    t.comment(
      `${this.checker.acknowledgedCount} messages after ${failures} failed tries, ${visits} sessions, ${this.streams.count} streams, ${this.commands.ledger.sentCount} commands`,
    );
  }

  async #begin(hasOnlyMessages: boolean): Promise<void> {
    const { nodes, checker } = this;
    const subscribers = [...SENDERS, ...READERS, ACTOR];
    for (const { id, type } of [...groups, STREAM_CHANNEL])
      await nodes.createGroup(id, subscribers, type);
    if (!hasOnlyMessages) await this.commands.prepare();
    this.#reading = Promise.all(this.readers.map((reader) => reader.run()));
    const isOver = () => this.#isOver;
    this.#loads.push(...this.senders.map((sender) => sender.run(isOver)));
    if (!hasOnlyMessages) this.#loads.push(...this.#play(isOver));
    // `settle` and `close` report rejections.
    for (const activity of [this.#reading, ...this.#loads]) activity.catch(() => undefined);
    const deadline = Date.now() + WAIT_MS;
    while (checker.acknowledgedCount < LOAD_RUNNING) {
      if (Date.now() > deadline) throw new Error("the broker acknowledges too few messages");
      await pause(10);
    }
  }

  /** Starts the load of streams and commands. */
  #play(isOver: () => boolean): readonly Promise<void>[] {
    const channels = [STREAM_CHANNEL, ...persons(READERS.slice(0, 2))];
    const plays = channels.map((channel) => this.streams.run({ channel, fromUid: ACTOR }, isOver));
    return [...plays, this.commands.run(isOver)];
  }

  /** Returns the checker, with each acknowledgement also recorded in `acks`. */
  #recordingChecker(): Pick<HistoryChecker, "recordSend" | "recordAcknowledgement"> {
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
      const offline = body.filter((user: { online: number }) => user.online !== 1);
      if (offline.length === 0) return;
      if (Date.now() > deadline)
        throw new Error(`users are offline on node ${at}: ${JSON.stringify(offline)}`);
      await pause(50);
    }
  }

  /** Prints the errors and the end of each node's output, to find the cause of a failure. */
  #printLogs(t: Test): void {
    for (let at = 0; at < this.nodes.count; at++) {
      const output = this.nodes.output(at);
      const errors = output.split("\n").filter((line) => /^\{"level":"(error|fatal)"/.test(line));
      for (const line of errors.slice(0, MAX_ERRORS)) t.comment(`node ${at}: ${line}`);
      t.comment(`node ${at}: ${output.slice(-LOG_LENGTH)}`);
    }
  }

  /** Ends the load and closes all connections. Safe to call twice. */
  async close(): Promise<void> {
    this.#isOver = true;
    for (const reader of this.readers) reader.close();
    for (const sender of this.senders) await sender.close();
    await this.#reading;
  }
}

/** Returns the keys of all channels that are checked. */
export function allKeys(): readonly string[] {
  const pairs = READERS.flatMap((reader) =>
    SENDERS.map((sender) => channelKey({ id: reader, type: 1 }, sender)),
  );
  return [...groups.map((group) => channelKey(group, "")), ...pairs];
}
