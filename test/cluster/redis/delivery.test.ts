// Nodes on one Redis server keep the delivery contract; so they do when it lost its last second.

import t, { type Test } from "tap";
import { deliveryContract } from "../../contract/delivery.ts";
import {
  disorder,
  KINDS,
  newPlace,
  range,
  say,
  texts,
  until,
} from "../../contract/delivery-bench.ts";
import { startFaultyRedis } from "../../support/faulty-network.ts";
import { deliveryDriver } from "./delivery-driver.ts";

t.test("one server", async (t: Test) => {
  const network = await startFaultyRedis(t);
  deliveryContract(t, deliveryDriver("redis", network, { isCluster: false }));
});

t.test("Redis lost what it had not written to its disk", async (t) => {
  const network = await startFaultyRedis(t); // it saves when it is told to
  const driver = deliveryDriver("redis", network, { isCluster: false });
  const [hearer, teller] = [await driver.open(t), await driver.open(t)];
  const places = [...KINDS, ...KINDS].map(newPlace);
  for (const { topic } of places) await hearer.cluster.listen(topic);
  const sayAll = (text: string) =>
    Promise.all(places.map((place) => insist(() => say(teller, place, text))));
  for (const text of ["1", "2"]) await sayAll(text);
  const [server] = network.servers;
  await server?.client().save();
  for (const text of ["3", "4", "5"]) await sayAll(text);
  await hearer.cluster.barrier();
  await server?.stop("SIGKILL");
  await server?.restart();
  for (const text of ["6", "7", "8"]) await sayAll(text); // with the numbers of 3, 4 and 5
  await insist(() => hearer.cluster.barrier());
  for (const place of places) t.same(texts(hearer, place), range(1, 8).map(String), place.kind);
  t.same(disorder(hearer), []);
});

/** Until it is done. */
async function insist(call: () => Promise<unknown>): Promise<void> {
  const isDone = () =>
    call().then(
      () => true,
      () => false,
    );
  await until(isDone, "it is done");
}
