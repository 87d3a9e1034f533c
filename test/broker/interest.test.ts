// Topics shared by several parts of a node: the node listens to a topic while at least one part
// does.

import { type Interest, shareInterest } from "../../src/broker/interest.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";

/** Creates a cluster that records its calls. Its `listen` waits for `ready`. */
function recordingCluster(ready: () => Promise<void> = async () => {}) {
  const calls: string[] = [];
  const listening = new Set<string>();
  const cluster: Interest = {
    async listen(...topics) {
      for (const topic of topics) {
        calls.push(`+${topic}`);
        listening.add(topic);
      }
      await ready();
    },
    subscribe: (...topics) => cluster.listen(...topics).then(() => false),
    unlisten(topic) {
      calls.push(`-${topic}`);
      listening.delete(topic);
    },
  };
  return { cluster, calls, listening };
}

t.test(
  "a node listens to a topic as long as at least one owner, such as the hub, listens to the topic",
  async (t) => {
    const { cluster, calls, listening } = recordingCluster();
    const shared = shareInterest(cluster);
    const [hub, followers] = [shared.owner(), shared.owner()];
    await hub.listen("u:a");
    await followers.listen("u:a");
    hub.unlisten("u:a");
    t.same([...listening], ["u:a"]);
    followers.unlisten("u:a");
    t.same([...listening], []);
    t.equal(calls.at(-1), "-u:a");
  },
);

t.test(
  "an owner that listens to a topic twice stops listening with a single `unlisten`",
  async (t) => {
    const { cluster, listening } = recordingCluster();
    const owner = shareInterest(cluster).owner();
    await owner.listen("u:a");
    await owner.listen("u:a");
    owner.unlisten("u:a");
    t.same([...listening], []);
  },
);

t.test(
  "the node keeps listening to a topic while one owner is subscribed to it, even after another owner stops listening",
  async (t) => {
    const { cluster, listening } = recordingCluster();
    const shared = shareInterest(cluster);
    const [hub, followers] = [shared.owner(), shared.owner()];
    await hub.subscribe("u:a");
    await followers.listen("u:a");
    followers.unlisten("u:a");
    t.same([...listening], ["u:a"]);
    hub.unlisten("u:a");
    t.same([...listening], []);
  },
);

t.test("`unlisten` has no effect for an owner that does not listen to the topic", async (t) => {
  const { cluster, calls, listening } = recordingCluster();
  const shared = shareInterest(cluster);
  const [hub, other] = [shared.owner(), shared.owner()];
  await hub.listen("u:a");
  other.unlisten("u:a");
  other.unlisten("u:none");
  t.same([...listening], ["u:a"]);
  t.same(calls, ["+u:a"]);
});

t.test("a second owner's `listen` resolves only after the node listens to the topic", async (t) => {
  let start = () => {};
  const started = new Promise<void>((resolve) => {
    start = resolve;
  });
  const { cluster } = recordingCluster(() => started);
  const shared = shareInterest(cluster);
  const order: string[] = [];
  const first = shared.owner().listen("u:a");
  const second = shared.owner().listen("u:a");
  void first.then(() => order.push("first"));
  void second.then(() => order.push("second"));
  await new Promise((turn) => setImmediate(turn));
  t.same(order, [], "no owner continues before the node listens");
  start();
  await Promise.all([first, second]);
  t.same(order, ["first", "second"]);
});

t.test("an owner gets the error if listening to a topic fails", async (t) => {
  const shared = shareInterest({
    listen: () => Promise.reject(new Error("no cluster")),
    subscribe: () => Promise.reject(new Error("no cluster")),
    unlisten() {},
  });
  const owner = shared.owner();
  await t.rejects(async () => owner.subscribe("u:a"), { message: "no cluster" });
  await t.rejects(owner.listen("u:a"), { message: "no cluster" });
});

t.test(
  "the node listens to exactly the topics of its owners after any sequence of calls",
  async (t) => {
    const random = new Random(3);
    const { cluster, listening } = recordingCluster();
    const shared = shareInterest(cluster);
    const owners = [shared.owner(), shared.owner(), shared.owner()].map((interest) => ({
      interest,
      topics: new Set<string>(),
    }));
    for (let step = 0; step < 2000; step++) {
      const { interest, topics } = random.pick(owners);
      const topic = `t${random.below(4)}`;
      if (random.flip()) {
        topics.add(topic);
        await interest.listen(topic);
      } else {
        topics.delete(topic);
        interest.unlisten(topic);
      }
      const expected = new Set(owners.flatMap(({ topics }) => [...topics]));
      if (step % 100 === 0) t.same([...listening].sort(), [...expected].sort());
      if (listening.size !== expected.size) throw new Error(`step ${step}`);
    }
  },
);
