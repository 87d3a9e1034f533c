// The order in which a fair semaphore runs the steps of several keys.

import { FairSemaphore } from "../../src/lib/fair-semaphore.ts";
import { t } from "../support/suite.ts";

const nextTurn = () => new Promise((done) => setImmediate(done));
const turns = async (): Promise<void> => {
  for (let i = 0; i < 4; i++) await nextTurn();
};

/** Creates a semaphore and steps that end when `end` is called. */
function createFixture(permits: number, maxWaiting = 100) {
  const semaphore = new FairSemaphore(permits, maxWaiting, () => new Error("full"));
  const started: string[] = [];
  const ends = new Map<string, () => void>();
  const run = (name: string) =>
    semaphore.run(name.charAt(0), () => {
      started.push(name);
      return new Promise<void>((done) => ends.set(name, done));
    });
  const end = async (name: string) => {
    ends.get(name)?.();
    await turns();
  };
  return { semaphore, started, run, end };
}

t.test("free permits go to the waiting keys in round-robin order", async (t) => {
  const { started, run, end } = createFixture(1);
  const names = ["a1", "a2", "a3", "a4", "b1", "b2", "c1"];
  const done = names.map(run);
  const order = ["a1", "a2", "b1", "c1", "a3", "b2", "a4"];
  for (const [at, name] of order.entries()) {
    t.same(started, order.slice(0, at + 1));
    await end(name);
  }
  await Promise.all(done);
});

t.test("steps run at the same time up to the number of permits", async (t) => {
  const { started, run, end } = createFixture(2);
  for (const name of ["a1", "a2", "a3", "b1"]) void run(name);
  t.same(started, ["a1", "a2"], "steps start immediately while permits are free");
  await end("a2");
  t.same(started.slice(2), ["a3"]);
  await end("a1");
  t.same(started.slice(3), ["b1"]);
});

t.test("steps that end immediately do not all run in one turn of the event loop", async (t) => {
  const { semaphore } = createFixture(2);
  let count = 0;
  const done = Array.from({ length: 6 }, () =>
    semaphore.run("a", () => {
      count += 1;
    }),
  );
  await Promise.all(done.slice(0, 2));
  t.equal(count, 2);
  await Promise.all(done);
  t.equal(count, 6);
});

t.test(
  "a step is refused if the maximum number of steps of its key is waiting, and steps of other keys run",
  async (t) => {
    const { run, end } = createFixture(1, 2);
    const done = ["a1", "a2", "a3"].map(run);
    await t.rejects(run("a4"), { message: "full" });
    done.push(run("b1"));
    for (const name of ["a1", "a2", "b1", "a3"]) await end(name);
    await Promise.all(done);
  },
);

t.test("a step that fails releases its permit", async (t) => {
  const { semaphore } = createFixture(1);
  const fail = () => Promise.reject(new Error("no"));
  for (let i = 0; i < 3; i++) await t.rejects(semaphore.run("a", fail), { message: "no" });
});
