// The order in which calls continue after preparations of different length.

import { setImmediate as turn } from "node:timers/promises";
import { KeyedSequencer } from "../../src/lib/keyed-sequencer.ts";
import { seeded } from "../gateway/random.ts";
import { t } from "../support/suite.ts";

/** A promise that the test settles. */
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

t.test(
  "a call waits until the preparation of an earlier call with the same key is finished",
  async (t) => {
    const sequencer = new KeyedSequencer();
    const [first, second] = [gate<string>(), gate<string>()];
    const order: string[] = [];
    const log = async (ready: Promise<string>): Promise<void> => {
      order.push(await sequencer.enter("a", ready));
    };
    const both = [log(first.promise), log(second.promise)];
    second.open("second");
    await turn();
    t.same(order, []);
    first.open("first");
    await Promise.all(both);
    t.same(order, ["first", "second"]);
  },
);

t.test(
  "a call does not wait for the work that an earlier call does after its preparation",
  async (t) => {
    const sequencer = new KeyedSequencer();
    const result = gate<void>();
    const slow = (async () => {
      await sequencer.enter("a", Promise.resolve());
      await result.promise;
    })();
    t.equal(await sequencer.enter("a", Promise.resolve("through")), "through");
    result.open();
    await slow;
  },
);

t.test("calls with different keys do not wait for each other", async (t) => {
  const sequencer = new KeyedSequencer();
  const stuck = gate<void>();
  const waiting = sequencer.enter("a", stuck.promise);
  t.equal(await sequencer.enter("b", Promise.resolve(1)), 1);
  stuck.open();
  await waiting;
});

t.test(
  "a preparation that is rejected while an earlier call waits rejects only its own call",
  async (t) => {
    const sequencer = new KeyedSequencer();
    const first = gate<number>();
    const results = Promise.allSettled([
      sequencer.enter("a", first.promise),
      sequencer.enter("a", Promise.reject(new Error("second"))),
      sequencer.enter("a", Promise.resolve(3)),
    ]);
    await turn(); // an unhandled rejection would end the process here
    first.open(1);
    t.match(await results, [
      { status: "fulfilled", value: 1 },
      { status: "rejected", reason: { message: "second" } },
      { status: "fulfilled", value: 3 },
    ]);
  },
);

t.test(
  "a call succeeds even if the preparation of an earlier call for the same key was rejected",
  async (t) => {
    const sequencer = new KeyedSequencer();
    const first = gate<number>();
    const failing = sequencer.enter("a", first.promise);
    const second = sequencer.enter("a", Promise.resolve(2));
    first.fail(new Error("first"));
    await t.rejects(failing, { message: "first" });
    t.equal(await second, 2);
  },
);

t.test("a call for an idle key waits only for its own preparation", async (t) => {
  const sequencer = new KeyedSequencer();
  await t.rejects(sequencer.enter("a", Promise.reject(new Error("gone"))));
  await sequencer.enter("a", Promise.resolve());
  const late = gate<string>();
  const entered = sequencer.enter("a", late.promise);
  late.open("alone");
  t.equal(await entered, "alone");
});

t.test(
  "calls continue in the order of their entry, in whatever order preparations end or fail",
  async (t) => {
    for (let seed = 1; seed <= 100; seed++) {
      const random = seeded(seed);
      const sequencer = new KeyedSequencer();
      const order: number[] = [];
      const gates = Array.from({ length: 12 }, () => gate<void>());
      const enter = async (at: number): Promise<void> => {
        const ready = gates[at]?.promise ?? Promise.resolve();
        await Promise.allSettled([sequencer.enter("a", ready)]);
        order.push(at);
      };
      const done: Promise<void>[] = [];
      const closed = new Set(gates);
      while (closed.size > 0) {
        const at = done.length;
        if (at < gates.length && random.chance(0.5)) done.push(enter(at));
        else {
          const picked = random.pick([...closed]);
          const isEntered = gates.indexOf(picked) < at;
          if (isEntered && random.chance(0.2)) picked.fail(new Error("failed"));
          else picked.open();
          closed.delete(picked);
        }
        if (random.chance(0.3)) await turn();
      }
      while (done.length < gates.length) done.push(enter(done.length));
      await Promise.all(done);
      t.same(order, [...gates.keys()], `the calls continue in order with seed ${seed}`);
    }
  },
);

t.test(
  "a sequencer that is created with `fail` also rejects the calls that wait for a rejected preparation",
  async (t) => {
    const sequencer = new KeyedSequencer("fail");
    const [first, second] = [gate<string>(), gate<string>()];
    const waiting = [sequencer.enter("a", first.promise), sequencer.enter("a", second.promise)];
    second.open("second");
    first.fail(new Error("no answer"));
    const results = await Promise.allSettled(waiting);
    t.same(
      results.map(({ status }) => status),
      ["rejected", "rejected"],
    );
    t.equal(await sequencer.enter("a", Promise.resolve("later")), "later");
    t.ok(sequencer.isEmpty);
  },
);
