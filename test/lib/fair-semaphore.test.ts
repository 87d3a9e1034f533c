// Work in turns between keys, on steps that end when the test says so.

import { FairSemaphore } from "../../src/lib/fair-semaphore.ts";
import { t } from "../support/suite.ts";

const nextTurn = () => new Promise((done) => setImmediate(done));
const turns = async (): Promise<void> => {
  for (let i = 0; i < 4; i++) await nextTurn();
};

function stage(places: number, maxWaiting = 100) {
  const line = new FairSemaphore(places, maxWaiting, () => new Error("full"));
  const begun: string[] = [];
  const ends = new Map<string, () => void>();
  const run = (name: string) =>
    line.run(name.charAt(0), () => {
      begun.push(name);
      return new Promise<void>((done) => ends.set(name, done));
    });
  const end = async (name: string) => {
    ends.get(name)?.();
    await turns();
  };
  return { line, begun, run, end };
}

t.test("permits go round among the keys that wait", async (t) => {
  const { begun, run, end } = stage(1);
  const names = ["a1", "a2", "a3", "a4", "b1", "b2", "c1"];
  const done = names.map(run);
  const order = ["a1", "a2", "b1", "c1", "a3", "b2", "a4"];
  for (const [at, name] of order.entries()) {
    t.same(begun, order.slice(0, at + 1));
    await end(name);
  }
  await Promise.all(done);
});

t.test("so many run at once", async (t) => {
  const { begun, run, end } = stage(2);
  for (const name of ["a1", "a2", "a3", "b1"]) void run(name);
  t.same(begun, ["a1", "a2"], "at once");
  await end("a2");
  t.same(begun.slice(2), ["a3"]);
  await end("a1");
  t.same(begun.slice(3), ["b1"]);
});

t.test("steps that end at once do not fill a turn", async (t) => {
  const { line } = stage(2);
  let count = 0;
  const done = Array.from({ length: 6 }, () =>
    line.run("a", () => {
      count += 1;
    }),
  );
  await Promise.all(done.slice(0, 2));
  t.equal(count, 2);
  await Promise.all(done);
  t.equal(count, 6);
});

t.test("a key that waits too often is refused, others are not", async (t) => {
  const { run, end } = stage(1, 2);
  const done = ["a1", "a2", "a3"].map(run);
  await t.rejects(run("a4"), { message: "full" });
  done.push(run("b1"));
  for (const name of ["a1", "a2", "b1", "a3"]) await end(name);
  await Promise.all(done);
});

t.test("a step that fails gives up its place", async (t) => {
  const { line } = stage(1);
  const fail = () => Promise.reject(new Error("no"));
  for (let i = 0; i < 3; i++) await t.rejects(line.run("a", fail), { message: "no" });
});
