// Nodes on one Redis server fulfil the delivery contract, and deliver every message even if Redis
// has lost its latest writes.

import t, { type Test } from "tap";
import { deliveryContract } from "../../contract/delivery.ts";
import {
  CHAT_KINDS,
  deliveredTexts,
  newChat,
  orderErrors,
  range,
  sendText,
  until,
} from "../../contract/delivery-fixture.ts";
import { startFaultyRedis } from "../../support/faulty-network.ts";
import { deliveryDriver } from "./delivery-driver.ts";

t.test("nodes on one Redis server fulfil the delivery contract", async (t: Test) => {
  const network = await startFaultyRedis(t);
  deliveryContract(t, deliveryDriver("redis", network, { isCluster: false }));
});

t.test(
  "messages are delivered even if they reuse seqs that were lost in a crash of Redis",
  async (t) => {
    const network = await startFaultyRedis(t); // writes to disk only on SAVE
    const driver = deliveryDriver("redis", network, { isCluster: false });
    const [subscriber, publisher] = [await driver.open(t), await driver.open(t)];
    const chats = [...CHAT_KINDS, ...CHAT_KINDS].map(newChat);
    for (const { topic } of chats) await subscriber.cluster.listen(topic);
    const sendToAll = (text: string) =>
      Promise.all(chats.map((chat) => retryUntilDone(() => sendText(publisher, chat, text))));
    for (const text of ["1", "2"]) await sendToAll(text);
    const [server] = network.servers;
    await server?.client().save();
    for (const text of ["3", "4", "5"]) await sendToAll(text);
    await subscriber.cluster.barrier();
    await server?.stop("SIGKILL");
    await server?.restart();
    for (const text of ["6", "7", "8"]) await sendToAll(text); // reuse the seqs of 3, 4 and 5
    await retryUntilDone(() => subscriber.cluster.barrier());
    for (const chat of chats)
      t.same(deliveredTexts(subscriber, chat), range(1, 8).map(String), chat.kind);
    t.same(orderErrors(subscriber), []);
  },
);

/** Repeats the call until it succeeds. */
async function retryUntilDone(call: () => Promise<unknown>): Promise<void> {
  const isDone = () =>
    call().then(
      () => true,
      () => false,
    );
  await until(isDone, "the call succeeds");
}
