// The queue that serves its keys in turn.

import { FairQueue } from "../../src/lib/fair-queue.ts";
import { t } from "../support/suite.ts";

const queue = (size = 100_000) =>
  new FairQueue<{ name: string; size: number; bytes: number }>({
    ...{ size, bytes: 1_000_000 },
  });
const item = (name: string, size: number) => ({ name, size, bytes: 1 });

t.test("a small item passes the many large ones of another key", async (t) => {
  const q = queue();
  for (let at = 0; at < 10; at++) q.push("attacker", item(`a${at}`, 5000));
  t.equal(q.take()?.name, "a0");
  q.push("good", item("g0", 1));
  q.push("good", item("g1", 1));
  const order = [q.take()?.name, q.take()?.name, q.take()?.name];
  t.same(order, ["g0", "g1", "a1"]);
});

t.test("items of one key keep their order, none is lost", async (t) => {
  const q = queue();
  for (let at = 0; at < 30; at++) q.push(`k${at % 3}`, item(`${at}`, (at * 137) % 900));
  const names: number[] = [];
  for (let one = q.take(); one; one = q.take()) names.push(Number(one.name));
  t.equal(names.length, 30);
  for (const key of [0, 1, 2]) {
    const own = names.filter((name) => name % 3 === key);
    t.same(
      own,
      [...own].sort((a, b) => a - b),
    );
  }
});

t.test("an item larger than the caller takes stays first", async (t) => {
  const q = queue();
  q.push("a", item("large", 400));
  t.equal(q.take(399), undefined);
  t.equal(q.take(400)?.name, "large");
  t.equal(q.take(), undefined);
});

t.test("small items may be taken out of turn, as far as their keys' turns go", async (t) => {
  const q = queue();
  q.push("attacker", item("large", 5000));
  q.push("good", item("g0", 1));
  for (let at = 0; at < 4; at++) q.push("busy", item(`b${at}`, 200));
  const names = q.takeSmall(1000).map(({ name }) => name);
  t.same(names, ["g0", "b0", "b1"], "500 of work a turn");
  t.same(q.takeSmall(1000), []);
  t.equal(q.take()?.name, "b2", "a turn later");
  q.push("other", item("o0", 300));
  t.same(
    q.takeSmall(299).map(({ name }) => name),
    ["b3"],
    "no more than asked for",
  );
  const rest = [q.take(), q.take()].map((one) => one?.name);
  t.same(rest.sort(), ["large", "o0"]);
  t.equal(q.take(), undefined);
});

t.test("a key may queue as much as is free, others less than it", async (t) => {
  const q = queue(100);
  let count = 0;
  for (; !q.isFull("attacker"); count++) q.push("attacker", item("a", 1));
  t.equal(count, 50);
  t.notOk(q.isFull("good"));
  while (q.take() !== undefined);
  t.notOk(q.isFull("attacker"), "it is free again");
});

t.test("keys get the same share of the work, whatever their items' sizes", async (t) => {
  const q = queue();
  for (const [key, size] of SHARES)
    for (let work = 0; work < 20_000; work += size) q.push(key, item(key, size));
  const work = new Map<string, number>();
  for (let at = 0; at < 200; at++) {
    const taken = q.take();
    if (taken === undefined) break;
    work.set(taken.name, (work.get(taken.name) ?? 0) + taken.size);
  }
  const shares = [...work.values()];
  t.equal(shares.length, SHARES.length, "all are served");
  const difference = Math.max(...shares) - Math.min(...shares);
  t.ok(difference <= 3500, `a turn and the largest item: ${difference}`);
});
const SHARES = [
  ["tiny", 50],
  ["odd", 730],
  ["large", 3000],
] as const;

t.test("what waits behind the first item does not cost a take more", async (t) => {
  const few = quickest(() => full(["a"], 2001, 1), 2000);
  const many = quickest(() => full(["a"], 99_000, 1), 2000);
  t.ok(many <= 5 * few, `2000 of 99000: ${many} ms, of 2001: ${few} ms`);
});

t.test("how large the items are does not cost a take more", async (t) => {
  const keys = Array.from({ length: 200 }, (_, at) => `k${at}`);
  const small = quickest(() => full(keys, 2, 600), 200);
  const large = quickest(() => full(keys, 2, 190_000), 200);
  t.ok(large <= 5 * small, `of 190000: ${large} ms, of 600: ${small} ms`);
});

function full(keys: readonly string[], count: number, size: number) {
  const q = queue();
  for (let at = 0; at < count; at++) for (const key of keys) q.push(key, item(key, size));
  return q;
}

/** Milliseconds of `takes`: the least of several runs is hardly that of a busy machine. */
function quickest(fill: () => ReturnType<typeof queue>, takes: number): number {
  let least = Number.POSITIVE_INFINITY;
  for (let run = 0; run < 8; run++) {
    const q = fill();
    const from = performance.now();
    for (let at = 0; at < takes; at++) q.take();
    least = Math.min(least, performance.now() - from);
  }
  return least;
}
