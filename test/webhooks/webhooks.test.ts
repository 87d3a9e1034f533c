// Tests of deliveries while the store refuses a change. No door shows a node that cannot store one
// change but can store the others.

import t from "tap";
import { BrokerError } from "../../src/broker/errors.ts";
import { Events } from "../../src/broker/events.ts";
import { LOOPBACK_NETWORKS, resolveHost } from "../../src/webhooks/addresses.ts";
import { createWebhooks } from "../../src/webhooks/webhooks.ts";
import { draftOf } from "../contract/store-fixture.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { startReceiver } from "./receiver.ts";

t.test("deliveries continue if a webhook that replied 410 could not be disabled", async (t) => {
  const store = await openStore(t, testFolder(t));
  await store.switchFeed(true);
  let isRefused = false;
  const webhooks = createWebhooks({
    store: {
      ...store,
      putWebhook: async (id, settings, expected, max) => {
        if (!settings.includes("disabledReason"))
          return store.putWebhook(id, settings, expected, max);
        isRefused = true;
        throw new BrokerError("unavailable");
      },
    },
    feed: new Events({ store, toJson: ({ messageSeq }) => ({ message_seq: messageSeq }) }),
    ...{ fixed: [], max: 1, timeoutMs: 5000, formats: {}, nodeId: "n1", version: "test" },
    ...{ allowNetworks: LOOPBACK_NETWORKS, resolve: resolveHost },
    metrics: { attempted() {}, watch() {} },
    ...{ onError() {}, onDisabled() {}, onLost() {} },
  });
  webhooks.start();
  t.teardown(() => webhooks.close());
  const receiver = await startReceiver(t);
  receiver.reply = () => (isRefused ? 204 : 410);
  const created = await webhooks.create({ url: receiver.url, batch: { max: 1, waitMs: 0 } });
  t.match(created, { id: /^wh_/ }, "the webhook is created");
  await store.append(draftOf());
  await receiver.until(() => receiver.events.some(({ type }) => type === "message.stored"));
  t.ok(isRefused, "the event arrives although the webhook should have been disabled");
});
