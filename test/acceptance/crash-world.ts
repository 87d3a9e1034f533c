// The set-up of the crash test: one data folder, its senders, readers and backend, and the broker
// that is killed under load. One round is load, SIGKILL, restart, retry and check.

import { setTimeout as pause } from "node:timers/promises";
import type { Test } from "tap";
import { type ChannelRef, GROUP_CHANNEL, PERSON_CHANNEL } from "../../src/broker/model.ts";
import {
  type Broker,
  type ChildBroker,
  type LaunchOptions,
  launchBroker,
  type Settings,
  spawnBroker,
} from "../support/broker.ts";
import { HistoryChecker, Reader } from "../support/history-checker.ts";
import type { Random } from "../support/random.ts";
import { Control, call, ok, setToken } from "./crash-control.ts";
import { Sender, type Shutdown } from "./crash-load.ts";
import {
  ADMIN_PASSWORD,
  GROUPS,
  HTTP_SENDERS,
  READERS,
  SOCKET_SENDERS,
  STATIC_TOKEN,
  TOKEN,
} from "./crash-names.ts";
import { Follower } from "./crash-reader.ts";
import { checkHistory } from "./history-check.ts";

const SETTINGS: Settings = {
  JINDOU_API_TOKEN: STATIC_TOKEN,
  JINDOU_ADMIN_PASSWORD: ADMIN_PASSWORD,
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
  JINDOU_CLIENT_MAX_STORED_BYTES_PER_SECOND: "0",
};
const SENDERS = [...HTTP_SENDERS, ...SOCKET_SENDERS];
const groups: readonly ChannelRef[] = GROUPS.map((id) => ({
  id,
  type: GROUP_CHANNEL,
}));
const persons = (uids: readonly string[]): readonly ChannelRef[] =>
  uids.map((id) => ({ id, type: PERSON_CHANNEL }));

/** Number of acknowledgements after which the load counts as running. */
const LOAD_RUNNING = 20;
/**
 * Maximum time from the moment at which the load counts as running until the kill. The actual time
 * is random.
 */
const MAX_LOAD_MS = 400;
/**
 * Number of messages each sender sends at once just before the kill, so that some messages are in
 * flight whenever the kill happens.
 */
const SENDS_BEFORE_KILL = 12;
const MAX_SENDING_MS = 4;
const WAIT_MS = 120_000;

export class CrashWorld {
  readonly checker = new HistoryChecker();
  /** Number of messages that were in flight at a kill. */
  interrupted = 0;
  readonly #t: Test;
  readonly #random: Random;
  readonly #senders: readonly Sender[];
  readonly #followers: readonly [Follower, Follower];
  readonly #histories: readonly Reader[];
  readonly #control = new Control();
  #broker: ChildBroker;

  private constructor(t: Test, random: Random, broker: ChildBroker) {
    this.#t = t;
    this.#random = random;
    this.#broker = broker;
    const { checker } = this;
    const channels = [...groups, ...persons(READERS)];
    const sender = (kind: "http" | "socket") => (uid: string) =>
      new Sender(uid, { kind, channels, checker, random });
    this.#senders = [...HTTP_SENDERS.map(sender("http")), ...SOCKET_SENDERS.map(sender("socket"))];
    const follower = (uid: string) => new Follower(uid, [...groups, ...persons(SENDERS)]);
    this.#followers = [follower("reader-0"), follower("reader-1")];
    this.#histories = allKeys().map((key) => new Reader("history", key));
  }

  /** Starts a broker on an empty folder and creates all users, groups and connections. */
  static async create(t: Test, random: Random, settings: Settings): Promise<CrashWorld> {
    const broker = await spawnBroker(t, { ...SETTINGS, ...settings });
    const world = new CrashWorld(t, random, broker);
    await prepareUsers(broker);
    await world.#control.prepare(broker);
    for (const participant of [...world.#senders, ...world.#followers])
      await participant.connect(broker);
    return world;
  }

  /**
   * Kills the broker under load, starts it with these settings and checks that nothing acknowledged
   * or shown was lost.
   */
  async round(settings: Settings, launch?: LaunchOptions): Promise<void> {
    await this.#loadUntilKilled();
    this.interrupted += this.checker.unacknowledged.length;
    const merged = { ...SETTINGS, ...settings };
    if (this.#random.below(4) === 0) await this.#killWhileStarting(merged, launch);
    const { dataPath } = this.#broker;
    this.#broker = await spawnBroker(this.#t, merged, dataPath, launch);
    await this.#checkNobodyOnline();
    await this.#reconnect();
    await this.#check();
  }

  /** Checks the complete history of every channel again. */
  async checkAll(): Promise<void> {
    for (const key of allKeys()) {
      const reader = new Reader("the complete history", key);
      await checkHistory(this.#broker, { checker: this.checker, reader });
    }
    this.#t.same(this.checker.problems.slice(0, 20), [], "the complete history is correct");
  }

  async close(): Promise<void> {
    for (const sender of this.#senders) sender.close();
    for (const follower of this.#followers) await follower.leave();
    await this.#broker.kill();
  }

  async #loadUntilKilled(): Promise<void> {
    const shutdown: Shutdown = { isBegun: false, isComplete: false };
    const [connected, roaming] = this.#followers;
    const work = Promise.allSettled([
      ...this.#senders.map((sender) => sender.run(shutdown)),
      roaming.roam(this.#broker, shutdown, this.#random),
      this.#control.run(this.#broker, shutdown),
    ]);
    await this.#loadIsRunning();
    await pause(this.#random.below(MAX_LOAD_MS));
    const sends = Promise.allSettled(
      this.#senders.map((sender) => sender.sendAtOnce(SENDS_BEFORE_KILL, shutdown)),
    );
    await pause(this.#random.below(MAX_SENDING_MS));
    const killed = this.#broker.kill();
    shutdown.isBegun = true;
    shutdown.isComplete = true;
    await killed;
    for (const outcome of [...(await sends), ...(await work)])
      if (outcome.status === "rejected") throw outcome.reason;
    await connected.leave();
    await roaming.leave();
  }

  async #loadIsRunning(): Promise<void> {
    const enough = this.checker.acknowledgedCount + LOAD_RUNNING;
    const untilMs = Date.now() + WAIT_MS;
    while (this.checker.acknowledgedCount < enough) {
      if (Date.now() > untilMs) throw new Error("the broker acknowledges too few messages");
      await pause(2);
    }
  }

  /** Kills a broker during its start, because recovery must be safe to repeat. */
  async #killWhileStarting(settings: Settings, launch: LaunchOptions | undefined): Promise<void> {
    const { dataPath } = this.#broker;
    const start = await launchBroker(this.#t, settings, dataPath, launch);
    await pause(200 + this.#random.below(400));
    await start.kill();
  }

  async #checkNobodyOnline(): Promise<void> {
    const { body } = await call(this.#broker, "/user/onlinestatus", READERS);
    const online = body.map((record: { online: number }) => record.online);
    this.#t.same(online, [0, 0], "every user is offline after a crash");
  }

  /**
   * Connects one reader before the retries and one after them. Both must see every message once and
   * in order.
   */
  async #reconnect(): Promise<void> {
    const [early, late] = this.#followers;
    await early.connect(this.#broker);
    for (const sender of this.#senders) await sender.connect(this.#broker);
    await Promise.all(this.#senders.map((sender) => sender.retry()));
    await late.connect(this.#broker);
  }

  async #check(): Promise<void> {
    const { checker } = this;
    const heads = new Map<string, number>();
    for (const reader of this.#histories) {
      const order = this.#random.pick(["asc", "desc"]);
      const read = { checker, reader };
      heads.set(reader.key, await checkHistory(this.#broker, read, order));
    }
    for (const follower of this.#followers) {
      await follower.untilCaughtUp(heads);
      follower.check(checker);
    }
    this.#t.same(
      checker.problems.slice(0, 20),
      [],
      "every message that was acknowledged or shown is in history",
    );
    await this.#control.verify(this.#t, this.#broker);
  }
}

function allKeys(): readonly string[] {
  const pairs = READERS.flatMap((reader) =>
    SENDERS.map((sender) => [reader, sender].sort().join("@")),
  );
  return [...GROUPS.map((id) => `2:${id}`), ...pairs.map((pair) => `1:${pair}`)];
}

async function prepareUsers(broker: Broker): Promise<void> {
  for (const uid of [...SENDERS, ...READERS]) await setToken(broker, uid, TOKEN);
  for (const { id, type } of groups)
    await ok(
      call(broker, "/channel", {
        channel_id: id,
        channel_type: type,
        subscribers: [...SENDERS, ...READERS],
      }),
    );
}
