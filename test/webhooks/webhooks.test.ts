// Tests of the calls that webhooks make to the store. No public interface shows how often an idle
// node reads, or lets a test make a single write fail.

import { mock } from "node:test";
import { setTimeout as pause, setImmediate as turn } from "node:timers/promises";
import t, { type Test } from "tap";
import { BrokerError } from "../../src/broker/errors.ts";
import {
  EVENT_PARTITIONS,
  EVENTS_START,
  type EventPosition,
  type EventStore,
} from "../../src/broker/event-ports.ts";
import { Events } from "../../src/broker/events.ts";
import { LEASE_MS } from "../../src/broker/held-lease.ts";
import { bucketOf } from "../../src/broker/log-frame.ts";
import type { Message } from "../../src/broker/model.ts";
import type { MessageStore } from "../../src/broker/ports.ts";
import { WEBHOOK_DEFAULTS, type WebhookStore } from "../../src/broker/webhook-ports.ts";
import { LOOPBACK_NETWORKS, resolveHost } from "../../src/webhooks/addresses.ts";
import type { FixedEndpoint } from "../../src/webhooks/endpoint.ts";
import { createWebhooks } from "../../src/webhooks/webhooks.ts";
import { draftOf } from "../contract/store-fixture.ts";
import { commandOf } from "../contract/store-inbox-fixture.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { type Receiver, startReceiver } from "./receiver.ts";

type FeedStore = WebhookStore & EventStore & Pick<MessageStore, "readMessages">;

/** Removes all events of the feed, of which there are `count`. */
async function removeEvents(
  store: Awaited<ReturnType<typeof openStore>>,
  count: number,
): Promise<void> {
  const limits = { beforeMs: Number.MAX_SAFE_INTEGER, maxBytes: 1e9, held: undefined };
  for (let removed = 0; removed < count; ) {
    await store.checkpoint(); // a trim removes only what a checkpoint has written
    removed += await store.trimEvents(limits);
  }
}

/** Returns the stored settings of a webhook that continues after a position in each partition. */
const recordOf = (
  url: string,
  { from, types, batch }: { from: readonly EventPosition[]; types: string[]; batch: object },
) =>
  JSON.stringify({
    settings: {
      ...{ ...WEBHOOK_DEFAULTS, url, types, batch, channels: {}, format: "standard" },
      enabled: true,
    },
    ...{ secrets: [], from, createdAtMs: 1, enabledAtMs: 1, replays: [] },
  });

/** Positions before the first event of each partition. */
const FEED_START = new Array<EventPosition>(EVENT_PARTITIONS).fill(EVENTS_START);

const inGroup = (id: string) => draftOf({ channel: { id, type: 2 } });

/** Returns a group whose events are in a different partition from those of `id`. */
function groupApartFrom(id: string): string {
  const names = ["a", "b", "c"];
  return names.find((name) => bucketOf(`2:${name}`) !== bucketOf(`2:${id}`)) ?? "";
}

/** Returns a group whose events are in the same partition as those of `id`. */
function groupBeside(id: string): string {
  for (let at = 0; ; at++)
    if (bucketOf(`2:beside-${at}`) === bucketOf(`2:${id}`)) return `beside-${at}`;
}

/** Returns a webhook's texts as if a batch that failed once had failed `attempts` times. */
function withAttempts(texts: ReadonlyMap<string, string>, attempts: number, dueMs: number) {
  const changed = (text: string) =>
    text
      .replace('"attempts":1', `"attempts":${attempts}`)
      .replace(/"dueMs":\d+/, `"dueMs":${dueMs}`);
  return new Map([...texts].map(([name, text]) => [name, changed(text)]));
}

/** Starts webhooks with a store. `over` replaces some calls of the store. */
async function startWebhooks(
  t: Test,
  over: (store: FeedStore) => Partial<FeedStore> = () => ({}),
  fixed: readonly FixedEndpoint[] = [],
  max = 1,
) {
  const store = await openStore(t, testFolder(t));
  await store.switchFeed(true);
  const lost: number[] = [];
  const start = () => {
    const replaced = { ...store, ...over(store) };
    const toJson = ({ messageSeq, payload }: Message) => ({
      message_seq: messageSeq,
      payload: Buffer.from(payload).toString("base64"),
    });
    const webhooks = createWebhooks({
      clock: Date.now,
      store: replaced,
      feed: new Events({ store: replaced, toJson }),
      ...{ fixed, max, timeoutMs: 5000, formats: {}, nodeId: "n1", version: "test" },
      ...{ allowNetworks: LOOPBACK_NETWORKS, resolve: resolveHost },
      metrics: { attempted() {}, watch() {} },
      ...{ onError() {}, onDisabled() {}, onLost: (_, events) => lost.push(events) },
      onChanged: async () => {},
    });
    t.teardown(() => webhooks.close());
    void webhooks.start();
    return webhooks;
  };
  return { store, webhooks: start(), lost, restart: start };
}

t.test("a node without webhooks checks every five seconds whether webhooks exist", async (t) => {
  mock.timers.enable({ apis: ["setTimeout"] });
  t.teardown(() => mock.timers.reset());
  let reads = 0;
  await startWebhooks(t, (store) => ({
    webhooks() {
      reads += 1;
      return store.webhooks();
    },
  }));
  for (let second = 0; second < 10; second++) {
    await turn();
    mock.timers.tick(1000);
  }
  await turn();
  t.equal(reads, 3, "the node reads on startup, and twice in ten seconds");
});

t.test("an event wakes only the webhooks that are subscribed to its type", async (t) => {
  let reads = 0;
  let saves = 0;
  const { store, webhooks } = await startWebhooks(
    t,
    (original) => ({
      readEvents(...args) {
        reads += 1;
        return original.readEvents(...args);
      },
      saveWebhookTexts(...args) {
        saves += 1;
        return original.saveWebhookTexts(...args);
      },
    }),
    [],
    20,
  );
  const receiver = await startReceiver(t);
  const batch = { max: 100, waitMs: 0 };
  for (let at = 0; at < 20; at++) {
    const types = [at === 0 ? "message.stored" : "channel.created"];
    await webhooks.create({ url: receiver.url, types, batch });
  }
  let sent = 0;
  const deliver = async () => {
    sent += 1;
    await store.append(draftOf({ clientMsgNo: `message ${sent}` }));
    await receiver.until(() => receiver.events.length === sent);
    await pause(100);
  };
  await deliver();
  const least = { reads: Number.POSITIVE_INFINITY, saves: Number.POSITIVE_INFINITY };
  // On a busy machine, work for an earlier event may be counted as well.
  for (let at = 0; at < 4 && (least.reads > 6 || least.saves > 3); at++) {
    [reads, saves] = [0, 0];
    await deliver();
    least.reads = Math.min(least.reads, reads);
    least.saves = Math.min(least.saves, saves);
  }
  t.ok(least.reads <= 6, `the feed was read ${least.reads} times for 20 webhooks`);
  t.ok(least.saves <= 3, `${least.saves} states were stored`);
});

t.test("idle webhooks read the feed only when it has new events", async (t) => {
  mock.timers.enable({ apis: ["setTimeout"] });
  t.teardown(() => mock.timers.reset());
  let reads = 0;
  const { webhooks } = await startWebhooks(
    t,
    (original) => ({
      readEvents(...args) {
        reads += 1;
        return original.readEvents(...args);
      },
    }),
    [],
    3,
  );
  for (let at = 0; at < 3; at++) await webhooks.create({ url: "http://127.0.0.1:9/hook" });
  while (reads < 3 * EVENT_PARTITIONS) await turn();
  reads = 0;
  for (let second = 0; second < 12; second++) {
    mock.timers.tick(1000);
    for (let at = 0; at < 5; at++) await turn();
  }
  t.equal(reads, 0, "no partition was read in twelve seconds");
});

t.test("a node whose lease expires while it reads events sends no request", async (t) => {
  let readEvents = () => {};
  const mayRead = new Promise<void>((resolve) => {
    readEvents = resolve;
  });
  let isReading = false;
  let isRenewalLate = false;
  const { store, webhooks } = await startWebhooks(t, (original) => ({
    async readMessages(...args) {
      isReading = true;
      await mayRead;
      return original.readMessages(...args);
    },
    async acquireWebhookLeases(...args) {
      while (isRenewalLate) await pause(10);
      return original.acquireWebhookLeases(...args);
    },
  }));
  const receiver = await startReceiver(t);
  const batch = { max: 1, waitMs: 0 };
  await webhooks.create({ url: receiver.url, types: ["message.stored"], batch });
  await store.append(draftOf());
  while (!isReading) await turn();
  isRenewalLate = true;
  const now = performance.now.bind(performance);
  const clock = mock.method(performance, "now", () => now() + LEASE_MS);
  t.teardown(() => clock.mock.restore());
  readEvents();
  await pause(300);
  t.equal(receiver.requests.length, 0, "no request is sent");
  isRenewalLate = false;
  await receiver.until(() => receiver.events.length === 1);
  t.pass("the event is delivered after the lease was renewed");
});

t.test("deliveries continue if a webhook could not be disabled after a 410", async (t) => {
  let isRefused = false;
  const { store, webhooks } = await startWebhooks(t, ({ putWebhook }) => ({
    async putWebhook(id, settings, expected, max) {
      if (!settings.includes("disabledReason")) return putWebhook(id, settings, expected, max);
      isRefused = true;
      throw new BrokerError("unavailable");
    },
  }));
  const receiver = await startReceiver(t);
  receiver.reply = () => (isRefused ? 204 : 410);
  const created = await webhooks.create({ url: receiver.url, batch: { max: 1, waitMs: 0 } });
  t.match(created, { id: /^wh_/ }, "the webhook is created");
  await store.append(draftOf());
  await receiver.until(() => receiver.events.some(({ type }) => type === "message.stored"));
  t.ok(isRefused, "the event arrives although the webhook should have been disabled");
});

type Started = Awaited<ReturnType<typeof startWebhooks>>;

/**
 * Creates a webhook and starts a replay of one event. `replays` returns the number of replays that
 * the webhook still has.
 */
async function startReplay(t: Test, { store, webhooks }: Pick<Started, "store" | "webhooks">) {
  const receiver = await startReceiver(t);
  const created = await webhooks.create({ url: receiver.url });
  if ("refusal" in created) throw new Error(created.refusal);
  await store.append(draftOf());
  await webhooks.replay(created.id, { after: "oldest", before: undefined, types: [] });
  const replays = async () => (await webhooks.list())[0]?.replays;
  return { receiver, replays };
}

/** Returns true if this write removes the replay of `startReplay` from the webhook. */
const isEndOfReplay = (settings: string, expected: number | undefined) =>
  expected === 2 && settings.includes('"replays":[]');

t.test("a replay ends even if the store could not remove the replay at first", async (t) => {
  let isRefused = false;
  const { store, webhooks } = await startWebhooks(t, ({ putWebhook }) => ({
    async putWebhook(id, settings, expected, max) {
      if (isRefused || !isEndOfReplay(settings, expected))
        return putWebhook(id, settings, expected, max);
      isRefused = true;
      throw new BrokerError("unavailable");
    },
  }));
  const { receiver, replays } = await startReplay(t, { store, webhooks });
  while (!isRefused) await turn();
  t.equal(await replays(), 1, "the replay was not removed");
  while ((await replays()) !== 0) await turn();
  t.ok(
    receiver.requests.some(({ headers }) => headers["webhook-replay"] === "1"),
    "the event of the replay was delivered",
  );
});

t.test("a replay ends even if other calls change the webhook at the same time", async (t) => {
  let conflicts = 0;
  const { store, webhooks } = await startWebhooks(t, ({ putWebhook }) => ({
    async putWebhook(id, settings, expected, max) {
      if (conflicts >= 10 || !isEndOfReplay(settings, expected))
        return putWebhook(id, settings, expected, max);
      conflicts += 1;
      return "changed";
    },
  }));
  const { replays } = await startReplay(t, { store, webhooks });
  const isEnded = async () => conflicts > 0 && (await replays()) === 0;
  for (let at = 0; at < 80 && !(await isEnded()); at++) await pause(100);
  t.equal(await replays(), 0, "the replay is removed");
});

t.test(
  "events that were removed from the feed before delivery are announced by one feed.gap event, before any other event",
  async (t) => {
    const { store, webhooks, lost, restart } = await startWebhooks(t);
    const receiver = await startReceiver(t);
    receiver.reply = () => 503;
    await webhooks.create({ url: receiver.url, batch: { max: 2, waitMs: 0 } });
    const groups = Array.from({ length: 20 }, (_, at) => `g${at}`);
    const append = async () => {
      for (const id of groups)
        await store.append(draftOf({ channel: { id, type: 2 }, key: `2:${id}` }));
    };
    await append();
    await receiver.until(() => receiver.requests.length > 0);
    await removeEvents(store, groups.length);
    await append();
    await receiver.until(() =>
      receiver.requests.some(({ events }) => events[0]?.type === "feed.gap"),
    );
    receiver.reply = () => 204;
    await receiver.until(() => receiver.events.length === groups.length + 1);
    const [gap, ...others] = receiver.events;
    t.match(
      gap,
      { type: "feed.gap", data: { count: groups.length } },
      "one event announces the gap of all partitions",
    );
    t.notOk(
      others.some(({ type }) => type === "feed.gap"),
      "no other event announces a gap",
    );
    t.strictSame(lost, [groups.length], "the loss is reported once");
    const announcements = () =>
      receiver.requests.filter(({ events }) => events[0]?.type === "feed.gap");
    const gaps = announcements();
    t.equal(
      new Set(gaps.map(({ id, body }) => `${id} ${body}`)).size,
      1,
      "the bytes of the announcement do not change",
    );
    await webhooks.close();
    restart();
    await append();
    await receiver.until(() => receiver.events.length === 2 * groups.length + 1);
    t.equal(announcements().length, gaps.length, "a restart does not announce the gap again");
  },
);

t.test(
  "the record of a configured webhook is removed a day after the configuration last contained the webhook",
  async (t) => {
    const { store, webhooks, restart } = await startWebhooks(t);
    const record = (seenAtMs: number) =>
      JSON.stringify({ secrets: [], from: [], createdAtMs: 1, seenAtMs, replays: [] });
    await store.putWebhook("recent", record(Date.now()), 0, 9);
    await store.putWebhook("old", record(Date.now() - 90_000_000), 0, 9);
    const created = await webhooks.create({ url: "http://127.0.0.1:9/hook" });
    t.match(created, { id: /^wh_/ }, "neither record counts against the limit of one webhook");
    await webhooks.close(); // after it has examined the records
    t.equal((await store.webhooks()).length, 3, "a node that has just started removes nothing");
    const steadyMs = performance.now.bind(performance);
    const later = mock.method(performance, "now", () => steadyMs() + 3_600_000);
    t.teardown(() => later.mock.restore());
    restart();
    while ((await store.webhooks()).some(({ id }) => id === "old")) await turn();
    const ids = (await store.webhooks()).map(({ id }) => id);
    t.ok(ids.includes("recent"), "another node may still have the recent one");
  },
);

t.test(
  "if the receiver rejects the first batch of events after feed.gap, the batch is halved until every part is accepted",
  async (t) => {
    const { store, webhooks } = await startWebhooks(t);
    const receiver = await startReceiver(t);
    receiver.reply = () => 503;
    await webhooks.create({ url: receiver.url, batch: { max: 4, waitMs: 0 } });
    await store.append(draftOf());
    await receiver.until(() => receiver.requests.length > 0);
    await removeEvents(store, 1);
    for (let at = 0; at < 4; at++) await store.append(draftOf());
    const before = receiver.requests.length;
    receiver.reply = ({ events }) => (events.length > 1 ? 422 : 204);
    await receiver.until(() => receiver.events.length === 5);
    const [gap, ...others] = receiver.events;
    t.equal(gap?.type, "feed.gap");
    t.strictSame(
      others.map(({ data }) => data.message_seq),
      [2, 3, 4, 5],
    );
    const sizes = receiver.requests.slice(before).map(({ events }) => events.length);
    t.strictSame(sizes.slice(-7), [4, 2, 1, 1, 2, 1, 1], "each request is sent once");
  },
);

t.test("a rejected feed.gap about on-demand events does not block other events", async (t) => {
  const { store, webhooks, restart } = await startWebhooks(t);
  const receiver = await startReceiver(t);
  receiver.reply = ({ events }) => (events.some(({ type }) => type === "feed.gap") ? 422 : 204);
  await store.setDemand({ feed: true, session: false, command: true });
  await store.append(inGroup("g"));
  for (let at = 0; at < 40; at++) {
    await store.appendCommand(commandOf());
    await store.checkpoint(); // a trim removes only what a checkpoint has written
  }
  const bytes = await store.eventBytes();
  await store.trimEvents({ beforeMs: 0, maxBytes: bytes, held: undefined });
  const { rows } = await store.readEvents(bucketOf("2:g"), EVENTS_START, 100);
  const left = rows.filter(({ type }) => type === "command.sent").length;
  t.ok(left > 0 && left < 40, `${left} of 40 on-demand events are left`);
  const batch = { max: 100, waitMs: 0 };
  const record = recordOf(receiver.url, { from: FEED_START, types: ["command.sent"], batch });
  await store.putWebhook("behind", record, 0, 9);
  await webhooks.close();
  const next = restart();
  await receiver.until(() => receiver.events.length === left);
  const failures = await next.failures("behind");
  t.match(failures, [{ event: { type: "feed.gap" }, attempts: 5, status: 422 }]);
});

t.test(
  "events removed while a feed.gap event waits are announced by another feed.gap event",
  async (t) => {
    const { store, webhooks, lost } = await startWebhooks(t);
    const receiver = await startReceiver(t);
    receiver.reply = () => 503;
    await webhooks.create({ url: receiver.url, batch: { max: 2, waitMs: 0 } });
    await store.append(inGroup("g"));
    await receiver.until(() => receiver.requests.length > 0);
    await removeEvents(store, 1);
    await store.append(inGroup("g"));
    await receiver.until(() =>
      receiver.requests.some(({ events }) => events[0]?.type === "feed.gap"),
    );
    await store.append(inGroup("g"));
    await removeEvents(store, 2);
    await store.append(inGroup("g"));
    receiver.reply = () => 204;
    await receiver.until(() => receiver.events.length === 3);
    const events = receiver.events.map(({ type, data }) => [type, data.count ?? data.message_seq]);
    const announced = [
      ["feed.gap", 1],
      ["feed.gap", 2],
    ];
    t.strictSame(events, [...announced, ["message.stored", 4]]);
    t.strictSame(lost, [1, 2]);
  },
);

t.test(
  "a feed.gap event is listed as a failure if only requests with feed.gap are rejected",
  async (t) => {
    const { store, webhooks, restart } = await startWebhooks(t, (original) => ({
      async webhookTexts(id, kind) {
        return withAttempts(await original.webhookTexts(id, kind), 4, 0);
      },
    }));
    const receiver = await startReceiver(t);
    receiver.reply = ({ events }) => (events[0]?.type === "feed.gap" ? 500 : 204);
    await store.append(inGroup("g"));
    await removeEvents(store, 1);
    await store.append(inGroup("g"));
    const batch = { max: 2, waitMs: 0 };
    const record = recordOf(receiver.url, { from: FEED_START, types: ["message.stored"], batch });
    await store.putWebhook("behind", record, 0, 9);
    await webhooks.close();
    const first = restart();
    const states = async () => [...(await store.webhookTexts("behind", "state")).values()].join();
    while (!(await states()).includes('"attempts":1')) await turn();
    t.strictSame(receiver.events, [], "the event waits at first");
    await first.close();
    const next = restart();
    await receiver.until(() => receiver.events.length === 1);
    while ((await store.webhookTexts("behind", "parked")).size === 0) await turn();
    const failures = await next.failures("behind");
    t.match(failures, [{ event: { type: "feed.gap" }, attempts: 6, status: 500 }]);
    const gaps = () => receiver.requests.filter(({ events }) => events[0]?.type === "feed.gap");
    const { length } = gaps();
    await next.retry("behind", gaps()[0]?.events[0]?.id ?? "");
    t.equal(gaps().length, length + 1, "a retry sends feed.gap");
    const contents = new Set(gaps().map(({ id, body }) => `${id} ${body}`));
    t.equal(contents.size, 1, "each attempt has the same id and bytes");
  },
);

for (const [count, arrives] of [
  [63, true],
  [64, false],
] as const)
  t.test(
    `events ${arrives ? "are delivered" : "wait"} while ${count} feed.gap events keep failing`,
    async (t) => {
      const nowMs = Date.now();
      const batchOf = (number: number) => ({
        ...{ after: EVENTS_START, first: 0, last: EVENTS_START, count: 1 },
        gap: { id: `gap-${number}`, type: "feed.gap", timestamp: "2026-01-01", data: { count: 1 } },
        ...{ eventMs: nowMs, formedMs: nowMs, dueMs: nowMs + 60_000 },
        ...{ attempts: 5, failingSinceMs: nowMs, isSuspect: true },
        settings: { types: ["message.stored"], channels: {}, format: "standard", isSingle: false },
      });
      const batches = Array.from({ length: count }, (_, at) => batchOf(at));
      const gaps = JSON.stringify({ position: EVENTS_START, batches, enabledAtMs: 1 });
      const { store, webhooks, restart } = await startWebhooks(t, (original) => ({
        async webhookTexts(id, kind) {
          return kind === "state"
            ? new Map([["live/gaps", gaps]])
            : original.webhookTexts(id, kind);
        },
      }));
      const receiver = await startReceiver(t);
      await store.append(inGroup("g"));
      const settings = { types: ["message.stored"], batch: { max: 2, waitMs: 0 } };
      const record = recordOf(receiver.url, { from: FEED_START, ...settings });
      await store.putWebhook("behind", record, 0, 9);
      await webhooks.close();
      restart();
      if (arrives) await receiver.until(() => receiver.events.length === 1);
      else await pause(500);
      t.equal(receiver.events.length, arrives ? 1 : 0);
    },
  );

for (const [name, title, arrives] of [
  ["live/0", "a webhook with a damaged state sends nothing and leaves no listener behind", false],
  ["damaged/0", "a replay with a damaged state does not stop the webhook", true],
] as const)
  t.test(title, async (t) => {
    let starts = 0;
    let listeners = 0;
    const { store, webhooks, restart } = await startWebhooks(t, (original) => ({
      async webhookTexts(id, kind) {
        if (kind === "state") starts += 1;
        return kind === "state" ? new Map([[name, "{"]]) : original.webhookTexts(id, kind);
      },
      onEvents(listener) {
        listeners += 1;
        const end = original.onEvents(listener);
        return () => {
          listeners -= 1;
          end();
        };
      },
    }));
    const receiver = await startReceiver(t);
    await store.append(draftOf());
    const batch = { max: 1, waitMs: 0 };
    const record = recordOf(receiver.url, { from: FEED_START, types: ["message.stored"], batch });
    const replay = { id: "damaged", after: FEED_START, before: FEED_START, types: [] };
    const text = JSON.stringify({ ...JSON.parse(record), replays: [replay] });
    await store.putWebhook("damaged", text, 0, 9);
    await webhooks.close();
    const next = restart();
    while (starts === 0) await turn();
    if (arrives) await receiver.until(() => receiver.events.length === 1);
    await next.close();
    t.equal(listeners, 0, "nothing listens to the feed");
    await pause(100);
    t.equal(receiver.requests.length, arrives ? 1 : 0, "no other request is sent");
  });

t.test(
  "a damaged record of a webhook does not hide other failed deliveries and attempts, and does not stop the removal of old events",
  async (t) => {
    const texts = {
      state: new Map([["live/0", "{"]]),
      parked: new Map([
        ["damaged", "{"],
        ["failed", JSON.stringify({ requestId: "r1", parkedMs: 1 })],
      ]),
    };
    const { store, webhooks } = await startWebhooks(t, () => ({
      webhookTexts: async (_, kind) => texts[kind],
      webhookAttempts: async () => ["{", JSON.stringify({ id: "a1" })],
    }));
    const from = FEED_START.map((start, partition) => ({ ...start, number: partition + 1 }));
    const settings = { types: ["message.stored"], batch: { max: 1, waitMs: 0 } };
    await store.putWebhook("damaged", recordOf("http://127.0.0.1:9/", { from, ...settings }), 0, 9);
    t.match(await webhooks.failures("damaged"), [{ requestId: "r1" }]);
    t.match(await webhooks.attempts("damaged", 10), [{ id: "a1" }]);
    t.same(await webhooks.neededEvents(), from);
  },
);

t.test("an idle webhook does not read the feed after feed.gap announced a restore", async (t) => {
  let reads = 0;
  let ticks = 0;
  const { store, webhooks, restart } = await startWebhooks(
    t,
    (original) => ({
      readEvents(...args) {
        reads += 1;
        return original.readEvents(...args);
      },
      newestEvents() {
        ticks += 1;
        return original.newestEvents();
      },
    }),
    [],
    9,
  );
  const receiver = await startReceiver(t);
  await store.append(draftOf());
  const from = (await store.newestEvents()).map(({ number, id }) => ({
    number,
    id: Math.max(0, id - 1), // as if a restore had reused the number for a different event
  }));
  const batch = { max: 1, waitMs: 0 };
  const record = recordOf(receiver.url, { from, types: ["channel.created"], batch });
  await store.putWebhook("restored", record, 0, 9);
  await webhooks.close();
  const next = restart();
  await receiver.until(() => receiver.events.length === 1);
  t.equal(receiver.events[0]?.type, "feed.gap");
  const other = await next.create({ url: receiver.url, enabled: false });
  if ("refusal" in other) throw new Error(other.refusal);
  await pause(100);
  [reads, ticks] = [0, 0];
  for (let at = 0; ticks < 5; at++) await next.update(other.id, { maxAgeS: 60 + at });
  await pause(50);
  t.equal(reads, 0, "the partition is not read again");
});

t.test("an event that cannot be parked is not sent again with each later event", async (t) => {
  const { store, webhooks, restart } = await startWebhooks(t, (original) => ({
    async webhookTexts(id, kind) {
      return withAttempts(await original.webhookTexts(id, kind), 4, 0);
    },
    async saveWebhookTexts(target, changes) {
      if ((changes.parked?.size ?? 0) > 0) throw new BrokerError("disk_full");
      return original.saveWebhookTexts(target, changes);
    },
  }));
  const receiver = await startReceiver(t);
  const isPoison = ({ events }: Receiver["requests"][number]) =>
    events.some(({ data }) => data.channel_key === "2:poison");
  receiver.reply = (request) => (isPoison(request) ? 500 : 204);
  const batch = { max: 1, waitMs: 0 };
  const created = await webhooks.create({
    ...{ url: receiver.url, types: ["message.stored"], batch },
  });
  if ("refusal" in created) throw new Error(created.refusal);
  await store.append(inGroup("poison"));
  const hasFailed = async () => {
    const texts = await store.webhookTexts(created.id, "state");
    return [...texts.values()].some((text) => text.includes('"attempts":1'));
  };
  while (!(await hasFailed())) await turn();
  await webhooks.close();
  restart();
  const attempts = () => receiver.requests.filter(isPoison).length;
  const deliverAnother = async () => {
    const before = receiver.events.length;
    await store.append(inGroup(groupApartFrom("poison")));
    await receiver.until(() => receiver.events.length > before);
  };
  while (attempts() < 3) await deliverAnother();
  for (let at = 0; at < 30; at++) await deliverAnother();
  t.equal(attempts(), 3, "the event waits after the attempt to park it");
});

for (const { later, arrives, title } of [
  {
    later: "slow",
    arrives: [["2:slow", 2]],
    title: "an event that failed is parked if a later event of its channel was accepted",
  },
  {
    later: groupBeside("slow"),
    arrives: [
      [`2:${groupBeside("slow")}`, 1],
      ["2:slow", 1],
    ],
    title: "an event that failed is sent again if an event of another channel was accepted",
  },
])
  t.test(title, async (t) => {
    const { store, webhooks, restart } = await startWebhooks(t, (original) => ({
      async webhookTexts(id, kind) {
        const dueMs = Date.now() + 300; // leaves time to form the batch of the later event
        return withAttempts(await original.webhookTexts(id, kind), 5, dueMs);
      },
    }));
    const receiver = await startReceiver(t);
    let failures = 0;
    receiver.reply = ({ events: [event] }) =>
      event?.data.channel_key === "2:slow" && event.data.message_seq === 1 && ++failures <= 2
        ? 500
        : 204;
    const created = await webhooks.create({
      ...{ url: receiver.url, types: ["message.stored"], batch: { max: 1, waitMs: 0 } },
    });
    if ("refusal" in created) throw new Error(created.refusal);
    const stored = async (kind: "state" | "parked") =>
      [...(await store.webhookTexts(created.id, kind)).values()].join();
    await store.append(inGroup("slow"));
    while (!(await stored("state")).includes('"attempts":1')) await turn();
    await webhooks.close();
    await store.append(inGroup(later));
    restart();
    await receiver.until(() => receiver.events.length === arrives.length);
    while (later === "slow" && (await stored("parked")) === "") await turn();
    await pause(100);
    const places = receiver.events.map(({ data }) => [data.channel_key, data.message_seq]);
    t.strictSame(places, arrives);
  });

t.test("a webhook whose state cannot be read does not delay other webhooks", async (t) => {
  let unreadable = "";
  const { store, webhooks, restart } = await startWebhooks(
    t,
    (original) => ({
      async webhookTexts(id, kind) {
        if (id === unreadable) throw new Error("unreadable");
        return original.webhookTexts(id, kind);
      },
      onEvents: () => () => undefined, // only the checks at each tick see new events
    }),
    [],
    2,
  );
  const receiver = await startReceiver(t);
  const create = async () => {
    const created = await webhooks.create({ url: receiver.url, types: ["message.stored"] });
    if ("refusal" in created) throw new Error(created.refusal);
    return created.id;
  };
  unreadable = await create();
  await create();
  await webhooks.close();
  restart();
  await store.append(inGroup("any"));
  await receiver.until(() => receiver.events.length === 1);
  await store.append(inGroup("any"));
  await receiver.until(() => receiver.events.length === 2);
  t.pass("both events arrive");
});

t.test(
  "a configured webhook whose record cannot be stored on a full disk does not end the leases of other webhooks",
  async (t) => {
    let renewals = 0;
    const receiver = await startReceiver(t);
    const fixed = {
      ...{ id: "fixed", secrets: [] },
      settings: JSON.parse(recordOf(receiver.url, { from: [], types: ["*"], batch: { max: 1 } }))
        .settings,
    };
    const { store, webhooks } = await startWebhooks(
      t,
      (original) => ({
        async putWebhook(id, ...args) {
          if (id === "fixed") throw new BrokerError("disk_full");
          return original.putWebhook(id, ...args);
        },
        acquireWebhookLeases(ids, ...args) {
          if (ids.length > 0) renewals += 1;
          return original.acquireWebhookLeases(ids, ...args);
        },
      }),
      [fixed],
      2,
    );
    const batch = { max: 1, waitMs: 0 };
    await webhooks.create({ url: receiver.url, types: ["message.stored"], batch });
    const other = await webhooks.create({ url: receiver.url, enabled: false });
    if ("refusal" in other) throw new Error(other.refusal);
    await store.append(draftOf());
    await receiver.until(() => receiver.events.length === 1);
    for (let at = 0; at < 3; at++) {
      const before = renewals;
      await webhooks.update(other.id, { maxAgeS: 60 + at });
      while (renewals === before) await turn();
    }
    t.pass("the lease is renewed in each turn");
  },
);

t.test("events that wait until feed.gap is accepted do not keep the node busy", async (t) => {
  const receiver = await startReceiver(t);
  const isGap = ({ events }: Receiver["requests"][number]) => events[0]?.type === "feed.gap";
  receiver.reply = (request) => (isGap(request) ? undefined : 204);
  const late = groupApartFrom("full");
  let readLate = () => {};
  const mayReadLate = new Promise<void>((resolve) => {
    readLate = resolve;
  });
  let reads = 0;
  const { store, webhooks, restart } = await startWebhooks(t, (original) => ({
    async readEvents(partition, ...args) {
      reads += 1;
      if (partition === bucketOf(`2:${late}`)) await mayReadLate;
      return original.readEvents(partition, ...args);
    },
  }));
  await store.append(inGroup(late));
  await removeEvents(store, 1);
  const batch = { max: 2, waitMs: 300 };
  const record = recordOf(receiver.url, { from: FEED_START, types: ["message.stored"], batch });
  await store.putWebhook("behind", record, 0, 9);
  await webhooks.close();
  restart();
  while (reads < EVENT_PARTITIONS) await turn();
  await Promise.all([1, 2, 3].map(() => store.append(inGroup("full"))));
  await receiver.until(() => receiver.events.length >= 2);
  readLate();
  await receiver.until(() => receiver.requests.some(isGap));
  await pause(300); // the third event no longer waits for others
  const timers = mock.method(globalThis, "setTimeout");
  t.teardown(() => timers.mock.restore());
  await pause(200);
  const rounds = timers.mock.calls.filter(({ arguments: [, ms = 0] }) => ms < 5);
  t.ok(rounds.length < 20, `the lane ran ${rounds.length} rounds`);
});

t.test("a webhook with a backlog does not read its whole backlog for one request", async (t) => {
  let messages = 0;
  const { store, webhooks, restart } = await startWebhooks(t, (original) => ({
    async readMessages(...args) {
      const slice = await original.readMessages(...args);
      messages += slice.messages.length;
      return slice;
    },
  }));
  const receiver = await startReceiver(t);
  receiver.reply = () => undefined;
  const payload = new Uint8Array(50_000);
  await Promise.all(Array.from({ length: 200 }, () => store.append(draftOf({ payload }))));
  const batch = { max: 1000, waitMs: 0 };
  const record = recordOf(receiver.url, { from: FEED_START, types: ["message.stored"], batch });
  await store.putWebhook("behind", record, 0, 9);
  await webhooks.close();
  restart();
  await receiver.until(() => receiver.requests.length === 1);
  t.ok(messages < 150, `${messages} messages of 50 kB were read for a request of 1 MB`);
});
