// The queue that gives every key the same share of the work.

import { FairQueue } from "../../src/lib/fair-queue.ts";
import { t } from "../support/suite.ts";

const queue = (size = 100_000) =>
  new FairQueue<{ name: string; size: number; bytes: number }>({
    ...{ size, bytes: 1_000_000 },
  });
const item = (name: string, size: number) => ({ name, size, bytes: 1 });

t.test("a small item overtakes many large items of another key", async (t) => {
  const q = queue();
  for (let at = 0; at < 10; at++) q.push("attacker", item(`a${at}`, 5000));
  t.equal(q.take()?.name, "a0");
  q.push("good", item("g0", 1));
  q.push("good", item("g1", 1));
  const order = [q.take()?.name, q.take()?.name, q.take()?.name];
  t.same(order, ["g0", "g1", "a1"]);
});

t.test("items of one key keep their order, and no item is lost", async (t) => {
  const q = queue();
  for (let at = 0; at < 30; at++) q.push(`k${at % 3}`, item(`${at}`, (at * 137) % 900));
  const names: number[] = [];
  for (let next = q.take(); next; next = q.take()) names.push(Number(next.name));
  t.equal(names.length, 30);
  for (const key of [0, 1, 2]) {
    const own = names.filter((name) => name % 3 === key);
    t.same(
      own,
      [...own].sort((a, b) => a - b),
    );
  }
});

t.test("an item larger than the size passed to `take` stays in the queue", async (t) => {
  const q = queue();
  q.push("a", item("large", 400));
  t.equal(q.take(399), undefined);
  t.equal(q.take(400)?.name, "large");
  t.equal(q.take(), undefined);
});

t.test(
  "`takeSmall` returns small items before large ones, and for each key at most the work of one turn",
  async (t) => {
    const q = queue();
    q.push("attacker", item("large", 5000));
    q.push("good", item("g0", 1));
    for (let at = 0; at < 4; at++) q.push("busy", item(`b${at}`, 200));
    const names = q.takeSmall(1000).map(({ name }) => name);
    t.same(names, ["g0", "b0", "b1"], "each key may use 500 units of work in a turn");
    t.same(q.takeSmall(1000), []);
    t.equal(q.take()?.name, "b2", "a later turn continues with the next item");
    q.push("other", item("o0", 300));
    t.same(
      q.takeSmall(299).map(({ name }) => name),
      ["b3"],
      "the returned items are not larger than requested",
    );
    const lastNames = [q.take(), q.take()].map((next) => next?.name);
    t.same(lastNames.sort(), ["large", "o0"]);
    t.equal(q.take(), undefined);
  },
);

t.test(
  "a single key fills at most half of the queue, and other keys can still add items",
  async (t) => {
    const q = queue(100);
    let count = 0;
    for (; !q.isFull("attacker"); count++) q.push("attacker", item("a", 1));
    t.equal(count, 50);
    t.notOk(q.isFull("good"));
    while (q.take() !== undefined);
    t.notOk(q.isFull("attacker"), "an empty queue accepts items again");
  },
);

t.test("keys get the same share of the work, even if their items differ in size", async (t) => {
  const q = queue();
  for (const [key, size] of SHARES)
    for (let work = 0; work < 20_000; work += size) q.push(key, item(key, size));
  const work = new Map<string, number>();
  for (let at = 0; at < 200; at++) {
    const next = q.take();
    if (next === undefined) break;
    work.set(next.name, (work.get(next.name) ?? 0) + next.size);
  }
  const shares = [...work.values()];
  t.equal(shares.length, SHARES.length, "every key is served");
  const difference = Math.max(...shares) - Math.min(...shares);
  t.ok(difference <= 3500, `shares differ by at most a turn and the largest item: ${difference}`);
});
const SHARES = [
  ["tiny", 50],
  ["odd", 730],
  ["large", 3000],
] as const;

t.test("the duration of `take` does not grow with the number of waiting items", async (t) => {
  const few = fastestMs(() => filledQueue(["a"], 2001, 1), 2000);
  const many = fastestMs(() => filledQueue(["a"], 99_000, 1), 2000);
  t.ok(
    many <= 5 * few,
    `2,000 calls of \`take\` take ${many} ms with 99,000 items and ${few} ms with 2,001 items`,
  );
});

t.test("the duration of `take` does not grow with the size of the items", async (t) => {
  const keys = Array.from({ length: 200 }, (_, at) => `k${at}`);
  const small = fastestMs(() => filledQueue(keys, 2, 600), 200);
  const large = fastestMs(() => filledQueue(keys, 2, 190_000), 200);
  t.ok(
    large <= 5 * small,
    `200 calls of \`take\` take ${large} ms with items of size 190,000 and ${small} ms with items of size 600`,
  );
});

/** Creates a queue with `count` items of each key. */
function filledQueue(keys: readonly string[], count: number, size: number) {
  const q = queue();
  for (let at = 0; at < count; at++) for (const key of keys) q.push(key, item(key, size));
  return q;
}

/** Returns the shortest duration of `takes` calls to `take` in several runs, in milliseconds. */
function fastestMs(fill: () => ReturnType<typeof queue>, takes: number): number {
  let fastest = Number.POSITIVE_INFINITY;
  for (let run = 0; run < 8; run++) {
    const q = fill();
    const from = performance.now();
    for (let at = 0; at < takes; at++) q.take();
    fastest = Math.min(fastest, performance.now() - from);
  }
  return fastest;
}
