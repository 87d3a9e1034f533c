// KeyedSequencer: calls go on in the order they entered, whatever each had to wait for first.

import { setImmediate as turn } from "node:timers/promises";
import { KeyedSequencer } from "../../src/lib/keyed-sequencer.ts";
import { seeded } from "../gateway/random.ts";
import { t } from "../support/suite.ts";

interface Gate<T> {
  readonly promise: Promise<T>;
  open(value: T): void;
  fail(error: Error): void;
}

function gate<T>(): Gate<T> {
  let open: (value: T) => void = () => {};
  let fail: (error: Error) => void = () => {};
  const promise = new Promise<T>((resolve, reject) => {
    open = resolve;
    fail = reject;
  });
  return { promise, open, fail };
}

t.test("the second waits for the first to prepare", async (t) => {
  const lanes = new KeyedSequencer();
  const [first, second] = [gate<string>(), gate<string>()];
  const order: string[] = [];
  const log = async (ready: Promise<string>): Promise<void> => {
    order.push(await lanes.enter("a", ready));
  };
  const both = [log(first.promise), log(second.promise)];
  second.open("second");
  await turn();
  t.same(order, []);
  first.open("first");
  await Promise.all(both);
  t.same(order, ["first", "second"]);
});

t.test("nobody waits for what another does after its turn", async (t) => {
  const lanes = new KeyedSequencer();
  const result = gate<void>();
  const slow = (async () => {
    await lanes.enter("a", Promise.resolve());
    await result.promise;
  })();
  t.equal(await lanes.enter("a", Promise.resolve("through")), "through");
  result.open();
  await slow;
});

t.test("lanes do not wait for each other", async (t) => {
  const lanes = new KeyedSequencer();
  const stuck = gate<void>();
  const waiting = lanes.enter("a", stuck.promise);
  t.equal(await lanes.enter("b", Promise.resolve(1)), 1);
  stuck.open();
  await waiting;
});

t.test("a rejection reaches its caller only, in its turn", async (t) => {
  const lanes = new KeyedSequencer();
  const first = gate<number>();
  const results = Promise.allSettled([
    lanes.enter("a", first.promise),
    lanes.enter("a", Promise.reject(new Error("second"))),
    lanes.enter("a", Promise.resolve(3)),
  ]);
  await turn(); // an unheard rejection would fail the process here
  first.open(1);
  t.match(await results, [
    { status: "fulfilled", value: 1 },
    { status: "rejected", reason: { message: "second" } },
    { status: "fulfilled", value: 3 },
  ]);
});

t.test("a first one that fails passes the turn on", async (t) => {
  const lanes = new KeyedSequencer();
  const first = gate<number>();
  const failing = lanes.enter("a", first.promise);
  const second = lanes.enter("a", Promise.resolve(2));
  first.fail(new Error("first"));
  await t.rejects(failing, { message: "first" });
  t.equal(await second, 2);
});

t.test("a lane that ran empty starts afresh", async (t) => {
  const lanes = new KeyedSequencer();
  await t.rejects(lanes.enter("a", Promise.reject(new Error("gone"))));
  await lanes.enter("a", Promise.resolve());
  const late = gate<string>();
  const entered = lanes.enter("a", late.promise);
  late.open("alone");
  t.equal(await entered, "alone");
});

t.test("any order of preparing, entering and failing keeps the lane's order", async (t) => {
  for (let seed = 1; seed <= 100; seed++) {
    const random = seeded(seed);
    const lanes = new KeyedSequencer();
    const order: number[] = [];
    const gates = Array.from({ length: 12 }, () => gate<void>());
    const enter = async (at: number): Promise<void> => {
      const ready = gates[at]?.promise ?? Promise.resolve();
      await Promise.allSettled([lanes.enter("a", ready)]);
      order.push(at);
    };
    const done: Promise<void>[] = [];
    const closed = new Set(gates);
    while (closed.size > 0) {
      const at = done.length;
      if (at < gates.length && random.chance(0.5)) done.push(enter(at));
      else {
        const one = random.pick([...closed]);
        const isEntered = gates.indexOf(one) < at;
        if (isEntered && random.chance(0.2)) one.fail(new Error("failed"));
        else one.open();
        closed.delete(one);
      }
      if (random.chance(0.3)) await turn();
    }
    while (done.length < gates.length) done.push(enter(done.length));
    await Promise.all(done);
    t.same(order, [...gates.keys()], `seed ${seed}`);
  }
});

t.test("where followers fail, nobody overtakes one that failed", async (t) => {
  const lanes = new KeyedSequencer("fail");
  const [first, second] = [gate<string>(), gate<string>()];
  const waiting = [lanes.enter("a", first.promise), lanes.enter("a", second.promise)];
  second.open("second");
  first.fail(new Error("no answer"));
  const answers = await Promise.allSettled(waiting);
  t.same(
    answers.map(({ status }) => status),
    ["rejected", "rejected"],
  );
  t.equal(await lanes.enter("a", Promise.resolve("later")), "later");
  t.ok(lanes.isEmpty);
});
