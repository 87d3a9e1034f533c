// The crash test's world: one data folder, its senders, readers and backend, and the broker that is
// killed under them. State: all of that. One round = load, kill -9, restart, retry, judge.

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
import { type Doom, Sender } from "./crash-load.ts";
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
import { judgeHistory } from "./history-judge.ts";

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

/** Acknowledgements that show that the load has begun. */
const LOAD_BEGUN = 20;
/** The kill falls at a random moment of this time after that. */
const MOST_LOAD_MS = 400;
/**
 * Messages every sender sends at once just before the kill, so that some are under way wherever it
 * falls.
 */
const VOLLEY = 12;
const MOST_VOLLEY_MS = 4;
const WAIT_MS = 120_000;

export class CrashWorld {
  readonly checker = new HistoryChecker();
  /** Messages that were under way at a kill. */
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

  /** A first start on an empty folder, with all users, groups and connections. */
  static async found(t: Test, random: Random, settings: Settings): Promise<CrashWorld> {
    const broker = await spawnBroker(t, { ...SETTINGS, ...settings });
    const world = new CrashWorld(t, random, broker);
    await prepareUsers(broker);
    await world.#control.prepare(broker);
    for (const one of [...world.#senders, ...world.#followers]) await one.connect(broker);
    return world;
  }

  /**
   * Kills the broker under load, starts it with these settings and proves that nothing it said was
   * lost.
   */
  async round(settings: Settings, launch?: LaunchOptions): Promise<void> {
    await this.#loadUntilKilled();
    this.interrupted += this.checker.unacknowledged.length;
    const all = { ...SETTINGS, ...settings };
    if (this.#random.below(4) === 0) await this.#killWhileStarting(all, launch);
    const { dataPath } = this.#broker;
    this.#broker = await spawnBroker(this.#t, all, dataPath, launch);
    await this.#verifyNobodyOnline();
    await this.#comeBack();
    await this.#judge();
  }

  /** Everything from the first message on, once more. */
  async judgeAll(): Promise<void> {
    for (const key of allKeys()) {
      const reader = new Reader("the whole history", key);
      await judgeHistory(this.#broker, { checker: this.checker, reader });
    }
    this.#t.same(this.checker.problems.slice(0, 20), [], "the whole history is sound");
  }

  async close(): Promise<void> {
    for (const sender of this.#senders) sender.close();
    for (const follower of this.#followers) await follower.leave();
    await this.#broker.kill();
  }

  async #loadUntilKilled(): Promise<void> {
    const doom: Doom = { isNear: false, isHere: false };
    const [steady, roaming] = this.#followers;
    const work = Promise.allSettled([
      ...this.#senders.map((sender) => sender.run(doom)),
      roaming.roam(this.#broker, doom, this.#random),
      this.#control.run(this.#broker, doom),
    ]);
    await this.#loadBegun();
    await pause(this.#random.below(MOST_LOAD_MS));
    const volley = Promise.allSettled(this.#senders.map((sender) => sender.volley(VOLLEY, doom)));
    await pause(this.#random.below(MOST_VOLLEY_MS));
    const killed = this.#broker.kill();
    doom.isNear = true;
    doom.isHere = true;
    await killed;
    for (const outcome of [...(await volley), ...(await work)])
      if (outcome.status === "rejected") throw outcome.reason;
    await steady.leave();
    await roaming.leave();
  }

  async #loadBegun(): Promise<void> {
    const enough = this.checker.acknowledgedCount + LOAD_BEGUN;
    const untilMs = Date.now() + WAIT_MS;
    while (this.checker.acknowledgedCount < enough) {
      if (Date.now() > untilMs) throw new Error("nothing is acknowledged");
      await pause(2);
    }
  }

  /** A start that does not get to its end: recovery must be safe to repeat. */
  async #killWhileStarting(settings: Settings, launch: LaunchOptions | undefined): Promise<void> {
    const { dataPath } = this.#broker;
    const start = await launchBroker(this.#t, settings, dataPath, launch);
    await pause(200 + this.#random.below(400));
    await start.kill();
  }

  async #verifyNobodyOnline(): Promise<void> {
    const { body } = await call(this.#broker, "/user/onlinestatus", READERS);
    const online = body.map((record: { online: number }) => record.online);
    this.#t.same(online, [0, 0], "nobody is online after a crash");
  }

  /**
   * One reader is there before the retries, one comes after them: both see everything once and in
   * order.
   */
  async #comeBack(): Promise<void> {
    const [early, late] = this.#followers;
    await early.connect(this.#broker);
    for (const sender of this.#senders) await sender.connect(this.#broker);
    await Promise.all(this.#senders.map((sender) => sender.retry()));
    await late.connect(this.#broker);
  }

  async #judge(): Promise<void> {
    const { checker } = this;
    const heads = new Map<string, number>();
    for (const reader of this.#histories) {
      const order = this.#random.pick(["asc", "desc"]);
      const read = { checker, reader };
      heads.set(reader.key, await judgeHistory(this.#broker, read, order));
    }
    for (const follower of this.#followers) {
      await follower.level(heads);
      follower.judge(checker);
    }
    this.#t.same(checker.problems.slice(0, 20), [], "what was acknowledged and shown holds");
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
