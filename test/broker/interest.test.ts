// A topic shared by several parts of a node is listened to while any of them wants it, and no
// longer.

import { type Interest, shareInterest } from "../../src/broker/interest.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";

/** A cluster that only writes down what it is asked; `ready` is what listening waits for. */
function noted(ready: () => Promise<void> = async () => {}) {
  const calls: string[] = [];
  const listening = new Set<string>();
  const cluster: Interest = {
    async listen(topic) {
      calls.push(`+${topic}`);
      listening.add(topic);
      await ready();
    },
    subscribe: (topic) => cluster.listen(topic),
    unlisten(topic) {
      calls.push(`-${topic}`);
      listening.delete(topic);
    },
  };
  return { cluster, calls, listening };
}

t.test("the last owner to leave ends the listening", async (t) => {
  const { cluster, calls, listening } = noted();
  const shared = shareInterest(cluster);
  const [hub, followers] = [shared.owner(), shared.owner()];
  await hub.listen("u:a");
  await followers.listen("u:a");
  hub.unlisten("u:a");
  t.same([...listening], ["u:a"]);
  followers.unlisten("u:a");
  t.same([...listening], []);
  t.equal(calls.at(-1), "-u:a");
});

t.test("an owner that listens twice has to leave once", async (t) => {
  const { cluster, listening } = noted();
  const owner = shareInterest(cluster).owner();
  await owner.listen("u:a");
  await owner.listen("u:a");
  owner.unlisten("u:a");
  t.same([...listening], []);
});

t.test("a topic that is only subscribed to is wanted too", async (t) => {
  const { cluster, listening } = noted();
  const shared = shareInterest(cluster);
  const [hub, followers] = [shared.owner(), shared.owner()];
  await hub.subscribe("u:a");
  await followers.listen("u:a");
  followers.unlisten("u:a");
  t.same([...listening], ["u:a"]);
  hub.unlisten("u:a");
  t.same([...listening], []);
});

t.test("who never listened ends nobody's listening", async (t) => {
  const { cluster, calls, listening } = noted();
  const shared = shareInterest(cluster);
  const [hub, other] = [shared.owner(), shared.owner()];
  await hub.listen("u:a");
  other.unlisten("u:a");
  other.unlisten("u:none");
  t.same([...listening], ["u:a"]);
  t.same(calls, ["+u:a"]);
});

t.test("a second owner waits until the listening holds", async (t) => {
  let begin = () => {};
  const begun = new Promise<void>((resolve) => {
    begin = resolve;
  });
  const { cluster } = noted(() => begun);
  const shared = shareInterest(cluster);
  const order: string[] = [];
  const first = shared.owner().listen("u:a");
  const second = shared.owner().listen("u:a");
  void first.then(() => order.push("first"));
  void second.then(() => order.push("second"));
  await new Promise((turn) => setImmediate(turn));
  t.same(order, [], "neither goes on before events come");
  begin();
  await Promise.all([first, second]);
  t.same(order, ["first", "second"]);
});

t.test("a refused listening reaches its owner", async (t) => {
  const shared = shareInterest({
    listen: () => Promise.reject(new Error("no cluster")),
    subscribe: () => Promise.reject(new Error("no cluster")),
    unlisten() {},
  });
  const owner = shared.owner();
  await t.rejects(owner.subscribe("u:a"), { message: "no cluster" });
  await t.rejects(owner.listen("u:a"), { message: "no cluster" });
});

t.test("after any sequence a topic is listened to exactly while wanted", async (t) => {
  const random = new Random(3);
  const { cluster, listening } = noted();
  const shared = shareInterest(cluster);
  const owners = [shared.owner(), shared.owner(), shared.owner()].map((interest) => ({
    interest,
    wants: new Set<string>(),
  }));
  for (let step = 0; step < 2000; step++) {
    const { interest, wants } = random.pick(owners);
    const topic = `t${random.below(4)}`;
    if (random.flip()) {
      wants.add(topic);
      await interest.listen(topic);
    } else {
      wants.delete(topic);
      interest.unlisten(topic);
    }
    const wanted = new Set(owners.flatMap(({ wants }) => [...wants]));
    if (step % 100 === 0) t.same([...listening].sort(), [...wanted].sort());
    if (listening.size !== wanted.size) throw new Error(`step ${step}`);
  }
});
