// Tests of the event feed and webhooks while nodes, Redis and receivers fail: every acknowledged
// message's event arrives, with the same id and content each time, and in the order of its channel.
// Whether a message needs a push is decided only once. JINDOU_TEST_WEBHOOK_KILLS and
// JINDOU_TEST_PUSH_KILLS set how often a single node is killed, and JINDOU_TEST_WEBHOOK_ROUNDS sets
// how many faults a cluster has.

import { cpSync, rmSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import {
  type Broker,
  type ChildBroker,
  spawnBroker,
  tempFolder,
  textPayload,
} from "../support/broker.ts";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { SHIFTED, ShiftedClock } from "../support/shifted-clock.ts";
import { volume } from "../support/volume.ts";
import {
  hasAll,
  historyOf,
  metric,
  problems,
  sendOnce,
  sendUntil,
  subscribe,
  until,
} from "./fault-world.ts";
import { type ReceivedEvent, startReceiver } from "./receiver.ts";

const KILLS = volume(200, "JINDOU_TEST_WEBHOOK_KILLS", 5);
const ROUNDS = volume(200, "JINDOU_TEST_WEBHOOK_ROUNDS", 3);
const PUSH_KILLS = volume(200, "JINDOU_TEST_PUSH_KILLS", 4);
const HOUR_MS = 3_600_000;

t.setTimeout(300_000 + (KILLS + PUSH_KILLS + ROUNDS) * 20_000);

const PUSH = {
  JINDOU_EVENTS_FEED: "on",
  JINDOU_PUSH_ENABLED: "true",
  JINDOU_PUSH_AFTER_MS: "50",
};

/** Returns the ids of the messages that have an event `message.unreached`, once for each event. */
async function unreachedIn({ call }: Broker): Promise<readonly number[]> {
  const ids: number[] = [];
  for (let after = "oldest", more = 1; more === 1; ) {
    const path = `/events?limit=1000&types=message.unreached&after=${after}`;
    const { body } = await call(path);
    ids.push(...body.events.map((event: ReceivedEvent) => event.data.message_id));
    ({ cursor: after, more } = body);
  }
  return ids;
}

/**
 * Waits until each message has an event `message.unreached`. Returns the ids of messages with more
 * than one such event.
 */
async function repeatedDecisions(
  broker: Broker,
  sent: ReadonlySet<number>,
): Promise<readonly number[]> {
  for (;;) {
    const ids = await unreachedIn(broker);
    const decided = new Set(ids);
    if ([...sent].every((id) => decided.has(id)))
      return ids.filter((id, at) => ids.indexOf(id) !== at);
    await pause(100);
  }
}

t.test(
  `each message to offline users gets exactly one message.unreached event, even if the node is killed ${PUSH_KILLS} times`,
  async (t) => {
    const random = new Random(PUSH_KILLS);
    const sent = new Set<number>();
    let broker: ChildBroker = await spawnBroker(t, PUSH);
    for (let kill = 0; kill < PUSH_KILLS; kill++) {
      let isKilled = false;
      const sending = sendUntil(t, { node: () => broker, sent, isEnded: () => isKilled });
      const enough = sent.size + 1 + random.below(60);
      await until(async () => sent.size >= enough);
      isKilled = true;
      await broker.kill();
      await sending;
      broker = await spawnBroker(t, PUSH, broker.dataPath);
    }
    t.strictSame(await repeatedDecisions(broker, sent), [], "no message is decided twice");
    t.ok(sent.size > 0, `${sent.size} messages were acknowledged`);
  },
);

const REDIS_KILLS = Math.floor(PUSH_KILLS / 10);
const noKills = REDIS_KILLS === 0 && "JINDOU_TEST_PUSH_KILLS is below 10";

t.test(
  `each message to offline users gets exactly one message.unreached event despite ${REDIS_KILLS} kills of either of two nodes`,
  { skip: noKills },
  async (t) => {
    const redis = await startRedis(t);
    const random = new Random(REDIS_KILLS);
    const sent = new Set<number>();
    const start = () => spawnBroker(t, { ...PUSH, JINDOU_REDIS_URL: redis.url });
    const nodes = [await start(), await start()] as [ChildBroker, ChildBroker];
    let isEnded = false;
    const sending = nodes.map((_, at) =>
      sendUntil(t, { node: () => nodes[at as 0 | 1], sent, isEnded: () => isEnded }),
    );
    for (let kill = 0; kill < REDIS_KILLS; kill++) {
      await pause(random.below(9000)); // a lease of a killed node ends after six seconds
      const victim = random.below(2) as 0 | 1;
      await nodes[victim].kill();
      nodes[victim] = await start();
    }
    isEnded = true;
    await Promise.all(sending);
    t.strictSame(await repeatedDecisions(nodes[0], sent), [], "no message is decided twice");
    t.ok(sent.size > 0, `${sent.size} messages were acknowledged`);
  },
);

t.test("another node decides who needs a push if the deciding node freezes or dies", async (t) => {
  const redis = await startRedis(t);
  const start = () => spawnBroker(t, { ...PUSH, JINDOU_REDIS_URL: redis.url });
  const nodes = [await start(), await start()] as const;
  const sent = new Set<number>();
  const send = async (broker: Broker) => {
    const sends = Array.from({ length: 30 }, async (_, at) => {
      const { status, body } = await broker.call("/message/send", {
        ...{ from_uid: "bob", channel_id: `user-${at}`, channel_type: 1 },
        payload: textPayload("x"),
      });
      if (status === 200) sent.add(body.message_id);
    });
    await Promise.allSettled(sends); // a node that was frozen rejects calls at first
  };
  const decides = async ({ call }: Broker) =>
    /^jindou_push_decided_total\{?[^\n]* [1-9]/m.test(String((await call("/metrics")).body));
  await send(nodes[0]);
  t.strictSame(await repeatedDecisions(nodes[1], sent), []);
  const [holder, other] = (await decides(nodes[0])) ? nodes : [nodes[1], nodes[0]];
  const sending = send(holder);
  holder.process.kill("SIGSTOP");
  await send(other);
  const seen = new Set([...sent]);
  t.strictSame(await repeatedDecisions(other, seen), [], "the other node has taken over");
  holder.process.kill("SIGCONT");
  await sending;
  while ((await holder.call("/readyz")).status !== 200) await pause(50);
  await send(holder);
  t.strictSame(await repeatedDecisions(other, sent), [], "the thawed node decides nothing twice");
  const late = send(holder);
  await other.kill();
  const client = redis.client();
  for (const lease of await client.keys("*:lease:*"))
    await client.hset(lease, "ends", Date.now() + HOUR_MS); // as if Redis' clock had been set back
  await late;
  t.strictSame(await repeatedDecisions(holder, sent), [], "the remaining node continues to decide");
});

t.test(`no event is lost when a node is killed ${KILLS} times`, async (t) => {
  const receiver = await startReceiver(t);
  const random = new Random(KILLS);
  const sent = new Set<number>();
  let broker: ChildBroker = await spawnBroker(t);
  await subscribe(broker, receiver);
  for (let kill = 0; kill < KILLS; kill++) {
    let isKilled = false;
    const sending = sendUntil(t, { node: () => broker, sent, isEnded: () => isKilled });
    const enough = sent.size + 1 + random.below(60);
    await until(async () => sent.size >= enough);
    isKilled = true;
    await broker.kill();
    await sending;
    broker = await spawnBroker(t, {}, broker.dataPath);
  }
  await receiver.until(() => hasAll(receiver, sent));
  t.comment(`${sent.size} messages, ${receiver.requests.length} requests`);
  t.ok(sent.size > 0, `messages were acknowledged`);
  t.strictSame(problems(receiver.requests), [], "ids, contents and order are right");
  await until(async () => (await metric(broker, "lag_events")) === 0);
  t.equal(await metric(broker, "oldest_undelivered_seconds"), 0, "no event waits");
  await broker.kill();
});

t.test("no event is lost when one of three nodes is killed or frozen", async (t) => {
  const redis = await startRedis(t);
  const receiver = await startReceiver(t);
  const random = new Random(ROUNDS);
  const start = (id: string) => spawnBroker(t, { JINDOU_REDIS_URL: redis.url, JINDOU_NODE_ID: id });
  const nodes = [await start("n0"), await start("n1"), await start("n2")];
  const at = (index: number) => nodes[index % 3] as ChildBroker;
  const webhookId = await subscribe(at(0), receiver);
  receiver.reply = (_, response) => {
    if (random.below(50) > 0) return 204;
    response.destroy(); // after the receiver has got the events
    return undefined;
  };

  /** Returns the index of the node that delivers. */
  const dispatcher = async () => {
    for (;;) {
      const { status, body } = await at(0).call(`/webhooks/${webhookId}/attempts`);
      if (status === 200) {
        const newest = body.attempts.find(({ events }: { events: number }) => events > 0);
        return Number(newest?.node_id.slice(1) ?? 0);
      }
      await pause(100); // a node that was frozen must first receive a reply from Redis
    }
  };
  const sent = new Set<number>();
  let turn = 0;
  let isEnded = false;
  let faulty = -1;
  const healthy = () => {
    turn += 1;
    return at(turn % 3 === faulty ? turn + 1 : turn);
  };
  const sending = sendUntil(t, { node: healthy, sent, isEnded: () => isEnded });
  await receiver.until(() => receiver.events.length > 10);
  let freezes = 0;
  for (let round = 0; round < ROUNDS; round++) {
    const enough = sent.size + random.below(60);
    await until(async () => sent.size >= enough);
    const isFreeze = round % 3 === 0;
    faulty = random.below(4) > 0 ? await dispatcher() : random.below(3);
    const node = at(faulty);
    const before = receiver.events.length;
    if (isFreeze) {
      freezes += 1;
      node.process.kill("SIGSTOP");
      await receiver.until(() => receiver.events.length > before + 100); // another node delivers
      node.process.kill("SIGCONT");
    } else {
      await node.kill();
      nodes[faulty] = await start(`n${faulty}`);
    }
    faulty = -1;
  }
  isEnded = true;
  await sending;
  await receiver.until(() => hasAll(receiver, sent));
  t.comment(`${ROUNDS} faults, ${freezes} of them freezes`);
  t.comment(`${sent.size} messages, ${receiver.requests.length} requests`);
  t.strictSame(problems(receiver.requests), [], "ids, contents and order are right");
  const total = async (name: string) => {
    const figures = await Promise.all(nodes.map((node) => metric(node, name)));
    return figures.reduce((sum, figure) => sum + figure, 0);
  };
  await until(async () => (await total("lag_events")) === 0);
  t.equal(await total("oldest_undelivered_seconds"), 0, "no event waits");
  await Promise.all(nodes.map((node) => node.kill()));
});

for (const [fsync, title] of [
  [
    "always",
    "the events of all acknowledged messages arrive after a crash of a Redis with appendfsync always",
  ],
  [
    "everysec",
    "the events of all messages that Redis kept are delivered after a crash in which Redis lost its last writes",
  ],
] as const)
  t.test(title, async (t) => {
    const redis = await startRedis(t, ["--appendonly", "yes", "--appendfsync", fsync]);
    const client = redis.client();
    const [, folder = ""] = (await client.config("GET", "dir")) as string[];
    client.disconnect(); // prevents errors when Redis ends
    const files = join(folder, "appendonlydir");
    const copy = join(await tempFolder(t), "copy");
    const receiver = await startReceiver(t);
    const settings = { JINDOU_REDIS_URL: redis.url };
    const nodes = [await spawnBroker(t, settings), await spawnBroker(t, settings)];
    const [node] = nodes as [ChildBroker, ChildBroker];
    await subscribe(node, receiver);
    const sent = new Set<number>();
    let isEnded = false;
    let turn = 0;
    const next = () => nodes[turn++ % 2] as ChildBroker;
    const sending = sendUntil(t, { node: next, sent, isEnded: () => isEnded });
    await receiver.until(() => receiver.events.length > 50);
    // A crash of the machine loses what was written after the copy. `always` loses nothing.
    if (fsync === "everysec") cpSync(files, copy, { recursive: true });
    const before = receiver.events.length;
    await receiver.until(() => receiver.events.length > before + 50);
    await redis.stop("SIGKILL");
    if (fsync === "everysec") {
      rmSync(files, { recursive: true });
      cpSync(copy, files, { recursive: true });
    }
    await redis.restart();
    const acknowledged = sent.size;
    await until(async () => sent.size > acknowledged + 50);
    isEnded = true;
    await sending;
    const kept = await historyOf(node);
    if (fsync === "always")
      t.ok(
        [...sent].every((id) => kept.has(id)),
        "no message was lost",
      );
    else
      t.notOk(
        [...sent].every((id) => kept.has(id)),
        "some messages were lost",
      );
    await receiver.until(() => hasAll(receiver, kept));
    const gaps = receiver.events.filter(({ type }) => type === "feed.gap");
    t.comment(`${sent.size} messages, ${kept.size} kept, ${gaps.length} gaps`);
    t.strictSame(problems(receiver.requests, kept), [], "ids, contents and order are right");
    if (fsync === "always") t.strictSame(problems(receiver.requests), [], "no batch has changed");
    await Promise.all(nodes.map((child) => child.kill()));
  });

t.test(
  "a node that is started on a restored copy of the data folder delivers the messages in that copy to the webhook",
  async (t) => {
    const receiver = await startReceiver(t);
    const sent = new Set<number>();
    const first = await spawnBroker(t);
    await subscribe(first, receiver);
    for (let at = 0; at < 20; at++) await sendOnce(first, sent);
    await receiver.until(() => receiver.events.length > 20); // some events are in flight
    await first.kill();
    const copy = join(await tempFolder(t), "copy");
    cpSync(first.dataPath, copy, { recursive: true });
    const second = await spawnBroker(t, {}, first.dataPath);
    for (let at = 0; at < 10; at++) await sendOnce(second, sent);
    await receiver.until(() => hasAll(receiver, sent));
    await second.kill();
    const restored = await spawnBroker(t, {}, copy);
    for (let at = 0; at < 20; at++) await sendOnce(restored, sent);
    const kept = await historyOf(restored);
    t.equal(kept.size, 120, "the history has the messages before and after the copy");
    await receiver.until(() => hasAll(receiver, kept));
    t.strictSame(problems(receiver.requests, kept), [], "ids, contents and order are right");
    await restored.kill();
  },
);

t.test("a receiver that failed for an hour gets every event after it has recovered", async (t) => {
  const clock = await ShiftedClock.create(t);
  const node = await spawnBroker(t, clock.settings, undefined, SHIFTED);
  const [failing, down] = [await startReceiver(t), await startReceiver(t)];
  const settings = { batch: { max: 100, waitMs: 0 } };
  const webhookIds = [
    await subscribe(node, failing, settings),
    await subscribe(node, down, settings),
  ];
  for (const receiver of [failing, down]) receiver.secret = ""; // the time of signatures is shifted
  failing.reply = () => 500;
  down.reply = () => 503;
  const sent = new Set<number>();
  for (let minute = 0; minute <= 60; minute += 5) {
    await clock.shiftTo(minute * 60_000);
    await sendOnce(node, sent);
    await pause(50);
  }
  await until(async () => (await metric(node, "oldest_undelivered_seconds")) > HOUR_MS / 1000);
  await until(async () => (await metric(node, "lag_events")) === 2 * sent.size);
  t.equal(await metric(node, "attempts_total", /"2xx"/), 0, "no request was accepted");
  let failed = 0;
  await until(async () => {
    failed = await metric(node, "attempts_total", /"5xx"/);
    return failed === failing.requests.length + down.requests.length; // no request is in flight
  });
  t.ok(failed < 200, `${failed} attempts were made`);
  const { body } = await node.call(`/webhooks/${webhookIds[0]}/failures`);
  t.strictSame(body.failures, [], "no event was parked");
  for (const receiver of [failing, down]) receiver.reply = () => 204;
  await clock.shiftTo(2 * HOUR_MS);
  await Promise.all(
    [failing, down].map((receiver) => receiver.until(() => hasAll(receiver, sent))),
  );
  for (const receiver of [failing, down])
    t.strictSame(problems(receiver.requests), [], "ids, contents and order are right");
  await until(async () => (await metric(node, "lag_events")) === 0);
  await node.kill();
});

t.test("setting the clock forward does not disable a failing webhook", async (t) => {
  const receiver = await startReceiver(t);
  receiver.reply = () => 503;
  const clock = await ShiftedClock.create(t);
  const node = await spawnBroker(t, clock.settings, undefined, SHIFTED);
  await subscribe(node, receiver, { maxAgeS: 60 });
  receiver.secret = ""; // the time of signatures is shifted
  const sent = new Set<number>();
  await sendOnce(node, sent);
  await receiver.until(() => receiver.requests.length > 0);
  await clock.shiftTo(24 * HOUR_MS);
  const before = receiver.requests.length;
  await receiver.until(() => receiver.requests.length > before + 1);
  receiver.reply = () => 204;
  await clock.shiftTo(25 * HOUR_MS);
  await receiver.until(() => hasAll(receiver, sent));
  t.equal(await metric(node, "disabled_total"), 0, "the webhook was not disabled");
});

t.test(
  "setting the clock back does not delay a repeated request, even across a restart",
  async (t) => {
    const receiver = await startReceiver(t);
    receiver.reply = () => 503;
    const clock = await ShiftedClock.create(t);
    const dataPath = await tempFolder(t);
    const first = await spawnBroker(t, clock.settings, dataPath, SHIFTED);
    await subscribe(first, receiver);
    receiver.secret = ""; // the time of signatures is shifted
    const sent = new Set<number>();
    await sendOnce(first, sent);
    await receiver.until(() => receiver.requests.length > 0);
    await clock.shiftTo(-HOUR_MS);
    const before = receiver.requests.length;
    await receiver.until(() => receiver.requests.length > before);
    await first.kill();
    clock.set(-4 * HOUR_MS);
    receiver.reply = () => 204;
    await spawnBroker(t, clock.settings, dataPath, SHIFTED);
    await receiver.until(() => hasAll(receiver, sent));
    t.strictSame(problems(receiver.requests), [], "ids, contents and order are right");
  },
);

t.test("events that a webhook has not accepted are kept beyond events.retentionS", async (t) => {
  const receiver = await startReceiver(t);
  receiver.reply = () => 503;
  const clock = await ShiftedClock.create(t);
  const settings = { ...clock.settings, JINDOU_EVENTS_RETENTION_S: "60" };
  const dataPath = await tempFolder(t);
  let broker = await spawnBroker(t, settings, dataPath, SHIFTED);
  const restartAt = async (shiftMs: number) => {
    await broker.terminate();
    clock.set(shiftMs);
    broker = await spawnBroker(t, settings, dataPath, SHIFTED); // removes old events before it is ready
  };
  const kept = async () => (await broker.call("/events?after=oldest")).body.events.length;

  await subscribe(broker, receiver);
  receiver.secret = ""; // signatures with a shifted time are not valid
  const sent = new Set<number>();
  await sendOnce(broker, sent);
  await receiver.until(() => receiver.requests.length > 0);
  await restartAt(600_000);
  t.equal(await kept(), sent.size, "all events are kept while the webhook lags");
  receiver.reply = () => 204;
  await receiver.until(() => hasAll(receiver, sent));
  await restartAt(1_200_000);
  t.equal(await kept(), 0, "the webhook has accepted all events");
});
