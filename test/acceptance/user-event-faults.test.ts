// Events of users and commands on three nodes over a Redis Cluster. Nodes and primaries are killed
// while users log in, kick each other, leave, change tokens and let commands expire.
// JINDOU_FAULT_SECONDS sets the duration, and JINDOU_TEST_SEED repeats a run.

import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { type ChildBroker, type Settings, spawnBroker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import type { NativeClient } from "../support/native-session.ts";
import { Random } from "../support/random.ts";
import { startRedisCluster } from "../support/redis.ts";
import { volume } from "../support/volume.ts";
import { Failovers } from "./cluster-failover.ts";

t.setTimeout(900_000);

const SECONDS = volume(60, "JINDOU_FAULT_SECONDS", 6);
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const DELAY_MS = 2000;
const KICKED = 4200;
const USERS = Array.from({ length: 24 }, (_, at) => `user-${at}`);
const TYPES = "user.*,session.kicked,command.expired";
const WAIT_MS = 120_000;

interface FeedEvent {
  readonly id: string;
  readonly type: string;
  readonly data: Readonly<Record<string, unknown>>;
}

/** Record of what the test did as one user. */
class UserLedger {
  readonly uid: string;
  readonly kickedDevices: string[] = [];
  readonly commands: number[] = [];
  tokens = 0;
  tokenCalls = 0;
  logins = 0;
  client: NativeClient | undefined;

  constructor(uid: string) {
    this.uid = uid;
  }
}

class World {
  readonly nodes: ChildBroker[] = [];
  readonly ledgers = USERS.map((uid) => new UserLedger(uid));
  /** JSON of each event that the reader has received, by id. */
  readonly read = new Map<string, string>();
  readonly errors: string[] = [];
  hasGap = false;
  isEnded = false;
  readonly #t: Test;
  readonly #settings: Settings;
  readonly #random: Random;

  constructor(t: Test, settings: Settings, random: Random) {
    this.#t = t;
    this.#settings = settings;
    this.#random = random;
  }

  async startNode(at: number): Promise<void> {
    const settings = { ...this.#settings, JINDOU_NODE_ID: `n${at}` };
    this.nodes[at] = await spawnBroker(this.#t, settings);
  }

  async killNode(): Promise<void> {
    const at = this.#random.below(this.nodes.length);
    await this.nodes[at]?.kill();
    await this.startNode(at);
  }

  node(): ChildBroker {
    return this.#random.pick(this.nodes);
  }

  async login(ledger: UserLedger, node = this.node()): Promise<void> {
    const deviceId = `${ledger.uid} ${ledger.logins++}`;
    const client = await connectNative(undefined, {
      ...{ port: node.clientPort, uid: ledger.uid, flag: 0, level: 1, deviceId, timeoutMs: 10_000 },
    });
    void client.closed.then(({ code }) => {
      if (code === KICKED) ledger.kickedDevices.push(deviceId);
    });
    ledger.client = client;
  }

  async changeToken(ledger: UserLedger): Promise<void> {
    const number = ledger.tokenCalls++;
    const body = { uid: ledger.uid, token: `token ${number}`, device_flag: 1 };
    const reply = await this.node().call("/user/token", { ...body, device_level: number % 2 });
    if (reply.status === 200) ledger.tokens += 1;
  }

  async sendCommand(ledger: UserLedger): Promise<void> {
    const reply = await this.node().call("/message/send", {
      ...{ from_uid: "backend", channel_id: ledger.uid, channel_type: 1, expire: 1 },
      ...{ payload: "eyJ0eXBlIjo5OSwiY21kIjoieCJ9", header: { sync_once: 1 } },
    });
    if (reply.status === 200) ledger.commands.push(reply.body.message_id);
  }

  /** Acts as the user until the faults have ended. */
  async act(ledger: UserLedger): Promise<void> {
    while (!this.isEnded) {
      const step = this.#random.pick([
        () => this.login(ledger),
        () => this.login(ledger),
        () => ledger.client?.disconnect(),
        () => this.changeToken(ledger),
        () => this.sendCommand(ledger),
      ]);
      await Promise.resolve(step()).catch(() => {});
      await pause(50 + this.#random.below(200));
    }
  }

  /** Reads the feed until the faults have ended. */
  async follow(): Promise<void> {
    for (let after = "oldest"; !this.isEnded; ) {
      const page = await this.#page(after).catch(() => undefined);
      if (page === undefined) await pause(100);
      else after = page.cursor;
      for (const event of page?.events ?? []) {
        const text = JSON.stringify(event);
        if (event.type === "feed.gap") this.hasGap = true;
        else if ((this.read.get(event.id) ?? text) !== text)
          this.errors.push(`${text} has changed`);
        else this.read.set(event.id, text);
      }
    }
  }

  async #page(after: string) {
    const path = `/events?types=${TYPES},feed.gap&limit=1000&wait=1&after=${after}`;
    const { status, body } = await this.node().call(path);
    if (status !== 200) throw new Error(JSON.stringify(body));
    return body as { readonly events: FeedEvent[]; readonly cursor: string; readonly more: number };
  }

  async allEvents(): Promise<FeedEvent[]> {
    const events: FeedEvent[] = [];
    for (let after = "oldest"; ; ) {
      const { status, body } = await this.node().call(
        `/events?types=${TYPES}&limit=1000&after=${after}`,
      );
      if (status !== 200) {
        await pause(100);
        continue;
      }
      events.push(...body.events);
      after = body.cursor;
      if (body.more === 0) return events;
    }
  }

  /**
   * Returns the presence events of each user as text, such as `+-+` for online, offline, online.
   */
  async presence(): Promise<ReadonlyMap<string, string>> {
    const marks = new Map<string, string>();
    for (const { type, data } of await this.allEvents())
      if (type === "user.online" || type === "user.offline")
        marks.set(
          String(data.uid),
          `${marks.get(String(data.uid)) ?? ""}${type === "user.online" ? "+" : "-"}`,
        );
    return marks;
  }
}

async function until(what: string, holds: () => Promise<boolean>): Promise<void> {
  const deadlineMs = performance.now() + WAIT_MS;
  while (!(await holds())) {
    if (performance.now() > deadlineMs) throw new Error(`timed out waiting until ${what}`);
    await pause(200);
  }
}

async function retried(call: () => Promise<void>): Promise<void> {
  await until("a call succeeds", () =>
    call().then(
      () => true,
      () => false,
    ),
  );
}

/** Returns the events that the feed lacks, or has in excess, compared with the ledgers. */
function faultsIn(events: readonly FeedEvent[], ledgers: readonly UserLedger[]): string[] {
  const faults: string[] = [];
  const eventsOf = (type: string, uid: string) =>
    events.filter((event) => event.type === type && event.data.uid === uid);
  for (const { uid, tokens, tokenCalls, kickedDevices, commands } of ledgers) {
    const changes = eventsOf("user.token_changed", uid).length;
    if (changes < tokens || changes > tokenCalls)
      faults.push(`${uid}: ${changes} events for ${tokens} to ${tokenCalls} changed tokens`);
    const devices = eventsOf("session.kicked", uid).map(({ data }) => data.device_id);
    if (new Set(devices).size < devices.length) faults.push(`${uid}: a kick has several events`);
    for (const device of kickedDevices)
      if (!devices.includes(device)) faults.push(`${uid}: no event for the kick of ${device}`);
    const expired = eventsOf("command.expired", uid).flatMap(
      ({ data }) => data.command_ids as readonly number[],
    );
    if (new Set(expired).size < expired.length) faults.push(`${uid}: a command has several events`);
    for (const id of commands)
      if (!expired.includes(id)) faults.push(`${uid}: no event for the expired command ${id}`);
  }
  return faults;
}

t.test(
  "kills and fail-overs lose no user event, and each user's last presence event is correct",
  async (t) => {
    t.comment(`JINDOU_TEST_SEED=${SEED}`);
    const random = new Random(SEED);
    const servers = await startRedisCluster(t, { replicas: true });
    const world = new World(
      t,
      {
        ...{ JINDOU_REDIS_URL: servers.url, JINDOU_REDIS_CLUSTER: "true" },
        ...{ JINDOU_REDIS_MIN_REPLICAS: "1", JINDOU_AUTH_CLIENTS: "none" },
        ...{ JINDOU_EVENTS_FEED: "on", JINDOU_EVENTS_PRESENCE_DELAY_MS: `${DELAY_MS}` },
        ...{ JINDOU_CLUSTER_DEAD_AFTER_MS: "1000", JINDOU_STORE_SWEEP_INTERVAL_MS: "500" },
      },
      random,
    );
    await world.startNode(0);
    await Promise.all([world.startNode(1), world.startNode(2)]);
    const failovers = new Failovers(servers, random);
    const { ledgers } = world;
    const acting = [world.follow(), ...ledgers.map((ledger) => world.act(ledger))];
    const endMs = performance.now() + SECONDS * 1000;
    let faults = 0;
    while (performance.now() < endMs || faults < 2) {
      await (faults++ % 2 === 0 ? world.killNode() : failovers.failOver());
      await pause(random.below(500));
    }
    world.isEnded = true;
    await Promise.all(acting);

    const [dying, ...alive] = world.nodes;
    if (dying === undefined || alive[0] === undefined) throw new Error("there are no nodes");
    for (const [at, ledger] of ledgers.entries())
      await retried(() => world.login(ledger, at % 2 === 0 ? dying : alive[0]));
    await until("all users are online", async () => {
      const marks = await world.presence();
      return USERS.every((uid) => marks.get(uid)?.endsWith("+"));
    });
    await pause(DELAY_MS);
    const before = await world.presence();
    await dying.kill();
    world.nodes.splice(0, 1);
    const left = ledgers.filter((_, at) => at % 4 === 0).map(({ uid }) => uid);
    const back = ledgers.filter((_, at) => at % 4 === 2);
    await Promise.all(back.map((ledger) => retried(() => world.login(ledger, alive[0]))));
    const isOffline = async () => {
      const marks = await world.presence();
      return left.every((uid) => marks.get(uid)?.endsWith("-"));
    };
    await until("the users who did not come back are offline", isOffline);
    await until("the feed has all events", async () => {
      const events = await world.allEvents();
      return faultsIn(events, ledgers).length === 0;
    }).catch(() => {});
    await pause(DELAY_MS);

    const events = await world.allEvents();
    t.strictSame(faultsIn(events, ledgers), []);
    const after = await world.presence();
    t.strictSame(
      USERS.map((uid) => after.get(uid)),
      USERS.map((uid) => `${before.get(uid)}${left.includes(uid) ? "-" : ""}`),
      "exactly the users who did not come back are offline",
    );
    t.ok(
      [...after.values()].every((marks) => /^(\+-)*\+?$/.test(marks)),
      "user.online and user.offline alternate",
    );
    t.strictSame(world.errors, [], "an event never changes");
    const texts = new Map(events.map((event) => [event.id, JSON.stringify(event)]));
    t.equal(texts.size, events.length, "no two events have the same id");
    const changed = [...world.read].filter(([id, text]) => texts.get(id) !== text);
    if (!world.hasGap) t.strictSame(changed, [], "a later reader gets the same events");
    const count = (type: string) => events.filter((event) => event.type === type).length;
    t.comment(
      `${faults} faults, ${events.length} events: ${count("user.token_changed")} tokens, ${count("session.kicked")} kicks, ${count("command.expired")} expiries, ${count("user.online")} online, ${count("user.offline")} offline`,
    );
  },
);
