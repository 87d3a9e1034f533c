// Nodes on one Redis server keep the delivery contract; so they do when it lost its last second.

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

t.test("one server", async (t: Test) => {
  const network = await startFaultyRedis(t);
  deliveryContract(t, deliveryDriver("redis", network, { isCluster: false }));
});

t.test("Redis lost what it had not written to its disk", async (t) => {
  const network = await startFaultyRedis(t); // it saves when it is told to
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
  for (const text of ["6", "7", "8"]) await sendToAll(text); // with the numbers of 3, 4 and 5
  await retryUntilDone(() => subscriber.cluster.barrier());
  for (const chat of chats)
    t.same(deliveredTexts(subscriber, chat), range(1, 8).map(String), chat.kind);
  t.same(orderErrors(subscriber), []);
});

/** Until it is done. */
async function retryUntilDone(call: () => Promise<unknown>): Promise<void> {
  const isDone = () =>
    call().then(
      () => true,
      () => false,
    );
  await until(isDone, "it is done");
}
