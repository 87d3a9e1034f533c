// Tests of the calls that webhooks make to the store. No public interface shows how often an idle
// node reads, or lets a test make a single write fail.

import { mock } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import t, { type Test } from "tap";
import { BrokerError } from "../../src/broker/errors.ts";
import { Events } from "../../src/broker/events.ts";
import type { WebhookStore } from "../../src/broker/webhook-ports.ts";
import { LOOPBACK_NETWORKS, resolveHost } from "../../src/webhooks/addresses.ts";
import type { FixedEndpoint } from "../../src/webhooks/endpoint.ts";
import { createWebhooks } from "../../src/webhooks/webhooks.ts";
import { draftOf } from "../contract/store-fixture.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { startReceiver } from "./receiver.ts";

/** Starts webhooks with a store. `over` replaces some of its calls. */
async function startWebhooks(
  t: Test,
  over: (store: WebhookStore) => Partial<WebhookStore> = () => ({}),
  fixed: readonly FixedEndpoint[] = [],
) {
  const store = await openStore(t, testFolder(t));
  await store.switchFeed(true);
  const lost: number[] = [];
  const start = () => {
    const webhooks = createWebhooks({
      clock: Date.now,
      store: { ...store, ...over(store) },
      feed: new Events({ store, toJson: ({ messageSeq }) => ({ message_seq: messageSeq }) }),
      ...{ fixed, max: 1, timeoutMs: 5000, formats: {}, nodeId: "n1", version: "test" },
      ...{ allowNetworks: LOOPBACK_NETWORKS, resolve: resolveHost },
      metrics: { attempted() {}, watch() {} },
      ...{ onError() {}, onDisabled() {}, onLost: (_, events) => lost.push(events) },
      onChanged: async () => {},
    });
    t.teardown(() => webhooks.close());
    webhooks.start();
    return webhooks;
  };
  return { store, webhooks: start(), lost, restart: start };
}

t.test("a node without webhooks looks for some every five seconds", async (t) => {
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
  t.equal(reads, 3, "at the start, and twice in ten seconds");
});

t.test("deliveries continue if a webhook that replied 410 could not be disabled", async (t) => {
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

t.test("a replay ends although the store could not remove it at first", async (t) => {
  let isRefused = false;
  const { store, webhooks } = await startWebhooks(t, ({ putWebhook }) => ({
    async putWebhook(id, settings, expected, max) {
      const isEnd = expected === 2 && settings.includes('"replays":[]');
      if (isRefused || !isEnd) return putWebhook(id, settings, expected, max);
      isRefused = true;
      throw new BrokerError("unavailable");
    },
  }));
  const receiver = await startReceiver(t);
  const created = await webhooks.create({ url: receiver.url });
  if ("refusal" in created) throw new Error(created.refusal);
  await store.append(draftOf());
  await webhooks.replay(created.id, { after: "oldest", before: undefined, types: [] });
  const replays = async () => (await webhooks.list())[0]?.replays;
  while (!isRefused) await turn();
  t.equal(await replays(), 1, "the replay was not removed");
  while ((await replays()) !== 0) await turn();
  t.ok(
    receiver.requests.some(({ headers }) => headers["webhook-replay"] === "1"),
    "its event was delivered",
  );
});

t.test("events that left the feed are announced once, before any other event", async (t) => {
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
  const limits = { beforeMs: Number.MAX_SAFE_INTEGER, maxBytes: 1e9, held: undefined };
  for (let removed = 0; removed < groups.length; ) {
    await store.checkpoint(); // a trim removes only what a checkpoint has written
    removed += await store.trimEvents(limits);
  }
  await append();
  await receiver.until(() =>
    receiver.requests.some(({ events }) => events[0]?.type === "feed.gap"),
  );
  receiver.reply = () => 204;
  await receiver.until(() => receiver.events.length === groups.length + 1);
  const [gap, ...others] = receiver.events;
  t.match(gap, { type: "feed.gap", data: { count: groups.length } }, "one gap for all partitions");
  t.notOk(
    others.some(({ type }) => type === "feed.gap"),
    "no other gap",
  );
  t.strictSame(lost, [groups.length], "the loss is reported once");
  const announcements = () =>
    receiver.requests.filter(({ events }) => events[0]?.type === "feed.gap");
  const gaps = announcements();
  t.equal(new Set(gaps.map(({ id, body }) => `${id} ${body}`)).size, 1, "its bytes do not change");
  await webhooks.close();
  restart();
  await append();
  await receiver.until(() => receiver.events.length === 2 * groups.length + 1);
  t.equal(announcements().length, gaps.length, "a restart does not announce it again");
});

t.test("records of fixed webhooks that no configuration has are removed after a day", async (t) => {
  const { store, webhooks } = await startWebhooks(t);
  const record = (seenAtMs: number) =>
    JSON.stringify({ secrets: [], from: [], createdAtMs: 1, seenAtMs, replays: [] });
  await store.putWebhook("recent", record(Date.now()), 0, 9);
  await store.putWebhook("old", record(Date.now() - 90_000_000), 0, 9);
  const created = await webhooks.create({ url: "http://127.0.0.1:9/hook" });
  t.match(created, { id: /^wh_/ }, "neither counts against the limit of one webhook");
  while ((await store.webhooks()).some(({ id }) => id === "old")) await turn();
  const ids = (await store.webhooks()).map(({ id }) => id);
  t.ok(ids.includes("recent"), "another node may still have the recent one");
});
