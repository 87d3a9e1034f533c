// Tests of the calls that webhooks make to the store. No door shows how often an idle node reads, or
// a node that cannot store one change but can store the others.

import { mock } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import t, { type Test } from "tap";
import { BrokerError } from "../../src/broker/errors.ts";
import { Events } from "../../src/broker/events.ts";
import type { WebhookStore } from "../../src/broker/webhook-ports.ts";
import { LOOPBACK_NETWORKS, resolveHost } from "../../src/webhooks/addresses.ts";
import { createWebhooks } from "../../src/webhooks/webhooks.ts";
import { draftOf } from "../contract/store-fixture.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { startReceiver } from "./receiver.ts";

/** Starts webhooks with a store. `over` replaces some of its calls. */
async function startWebhooks(t: Test, over: (store: WebhookStore) => Partial<WebhookStore>) {
  const store = await openStore(t, testFolder(t));
  await store.switchFeed(true);
  const webhooks = createWebhooks({
    store: { ...store, ...over(store) },
    feed: new Events({ store, toJson: ({ messageSeq }) => ({ message_seq: messageSeq }) }),
    ...{ fixed: [], max: 1, timeoutMs: 5000, formats: {}, nodeId: "n1", version: "test" },
    ...{ allowNetworks: LOOPBACK_NETWORKS, resolve: resolveHost },
    metrics: { attempted() {}, watch() {} },
    ...{ onError() {}, onDisabled() {}, onLost() {} },
  });
  t.teardown(() => webhooks.close());
  webhooks.start();
  return { store, webhooks };
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
