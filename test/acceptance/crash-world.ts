// The crash test's world: one data folder, its senders, readers and backend, and the broker that is killed under them. State: all of that.
// One round = load, kill -9, restart, retry, judge.

import type { Test } from "tap";
import {
  type ChannelRef,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
} from "../../src/broker/model.ts";
import {
  type Broker,
  type ChildBroker,
  launchBroker,
  type Settings,
  spawnBroker,
  tempFolder,
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
import { Follower, judgeHistory } from "./crash-reader.ts";

const SENDERS = [...HTTP_SENDERS, ...SOCKET_SENDERS];
const groups: readonly ChannelRef[] = GROUPS.map((id) => ({
  id,
  type: GROUP_CHANNEL,
}));
const persons = (uids: readonly string[]): readonly ChannelRef[] =>
  uids.map((id) => ({ id, type: PERSON_CHANNEL }));

/** Where the kill falls: so long after the load began. */
const LOAD_MS = { least: 50, most: 500 };

export class CrashWorld {
  readonly checker = new HistoryChecker();
  /** Messages that were under way at a kill. */
  interrupted = 0;
  readonly #t: Test;
  readonly #random: Random;
  readonly #settings: Settings;
  readonly #dataPath: string;
  readonly #senders: readonly Sender[];
  readonly #followers: readonly [Follower, Follower];
  readonly #histories: readonly Reader[];
  readonly #control = new Control();
  #broker: ChildBroker;

  private constructor(t: Test, random: Random, home: Home) {
    this.#t = t;
    this.#random = random;
    this.#settings = home.settings;
    this.#dataPath = home.broker.dataPath;
    this.#broker = home.broker;
    const { checker } = this;
    const channels = [...groups, ...persons(READERS)];
    const sender = (kind: "http" | "socket") => (uid: string) =>
      new Sender(uid, { kind, channels, checker, random });
    this.#senders = [
      ...HTTP_SENDERS.map(sender("http")),
      ...SOCKET_SENDERS.map(sender("socket")),
    ];
    const follower = (uid: string) =>
      new Follower(uid, [...groups, ...persons(SENDERS)]);
    this.#followers = [follower("reader-0"), follower("reader-1")];
    this.#histories = allKeys().map((key) => new Reader("history", key));
  }

  /** A first start on an empty folder, with all users, groups and connections. */
  static async found(
    t: Test,
    random: Random,
    settings: Settings,
  ): Promise<CrashWorld> {
    const all = {
      JINDOU_API_TOKEN: STATIC_TOKEN,
      JINDOU_ADMIN_PASSWORD: ADMIN_PASSWORD,
      JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
      ...settings,
    };
    const broker = await spawnBroker(t, all, await tempFolder(t));
    const world = new CrashWorld(t, random, { broker, settings: all });
    await prepareUsers(broker);
    await world.#control.prepare(broker);
    for (const one of [...world.#senders, ...world.#followers])
      await one.connect(broker);
    return world;
  }

  /** Kills the broker under load and proves that nothing it said was lost. */
  async round(): Promise<void> {
    await this.#loadUntilKilled();
    this.interrupted += this.checker.unanswered.length;
    if (this.#random.below(4) === 0) await this.#killWhileStarting();
    this.#broker = await spawnBroker(this.#t, this.#settings, this.#dataPath);
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
    this.#t.same(this.checker.problems, [], "the whole history is sound");
  }

  async close(): Promise<void> {
    for (const sender of this.#senders) sender.close();
    for (const follower of this.#followers) await follower.leave();
    await this.#broker.kill();
  }

  async #loadUntilKilled(): Promise<void> {
    const doom: Doom = { isNear: false };
    const [steady, roaming] = this.#followers;
    const work = Promise.allSettled([
      ...this.#senders.map((sender) => sender.run(doom)),
      roaming.roam(this.#broker, doom, this.#random),
      this.#control.run(this.#broker, doom),
    ]);
    const span = LOAD_MS.most - LOAD_MS.least;
    const lifeMs = LOAD_MS.least + this.#random.below(span);
    await new Promise((live) => setTimeout(live, lifeMs));
    const killed = this.#broker.kill();
    doom.isNear = true;
    await killed;
    for (const outcome of await work)
      if (outcome.status === "rejected") throw outcome.reason;
    await steady.leave();
    await roaming.leave();
  }

  /** A start that does not get to its end: recovery must be safe to repeat. */
  async #killWhileStarting(): Promise<void> {
    const start = await launchBroker(this.#t, this.#settings, this.#dataPath);
    const lifeMs = 200 + this.#random.below(400);
    await new Promise((live) => setTimeout(live, lifeMs));
    await start.kill();
  }

  async #verifyNobodyOnline(): Promise<void> {
    const { body } = await call(this.#broker, "/user/onlinestatus", READERS);
    const online = body.map((record: { online: number }) => record.online);
    this.#t.same(online, [0, 0], "nobody is online after a crash");
  }

  /** One reader is there before the retries, one comes after them: both see everything once and in order. */
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
    this.#t.same(checker.problems, [], "what was acknowledged and shown holds");
    await this.#control.verify(this.#t, this.#broker);
  }
}

interface Home {
  readonly broker: ChildBroker;
  readonly settings: Settings;
}

function allKeys(): readonly string[] {
  const pairs = READERS.flatMap((reader) =>
    SENDERS.map((sender) => [reader, sender].sort().join("@")),
  );
  return [
    ...GROUPS.map((id) => `2:${id}`),
    ...pairs.map((pair) => `1:${pair}`),
  ];
}

async function prepareUsers(broker: Broker): Promise<void> {
  for (const uid of [...SENDERS, ...READERS])
    await setToken(broker, uid, TOKEN);
  for (const { id, type } of groups)
    await ok(
      call(broker, "/channel", {
        channel_id: id,
        channel_type: type,
        subscribers: [...SENDERS, ...READERS],
      }),
    );
}
