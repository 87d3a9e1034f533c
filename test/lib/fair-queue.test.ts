// The queue that serves its keys in turn.

import t from "tap";
import { FairQueue } from "../../src/lib/fair-queue.ts";

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
  for (let at = 0; at < 30; at++)
    q.push(`k${at % 3}`, item(`${at}`, (at * 137) % 900));
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

t.test("a key may queue as much as is free, others less than it", async (t) => {
  const q = queue(100);
  let count = 0;
  for (; !q.isFull("attacker"); count++) q.push("attacker", item("a", 1));
  t.equal(count, 50);
  t.notOk(q.isFull("good"));
  while (q.take() !== undefined);
  t.notOk(q.isFull("attacker"), "it is free again");
});
