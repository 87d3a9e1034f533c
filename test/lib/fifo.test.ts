// Tests that a queue returns its items in order, however many have been taken.

import { Fifo } from "../../src/lib/fifo.ts";
import { t } from "../support/suite.ts";

t.test("items are returned in the order in which they were added", async (t) => {
  const queue = new Fifo<number>();
  t.equal(queue.shift(), undefined);
  let added = 0;
  let removed = 0;
  for (let round = 0; round < 50; round++) {
    for (let count = 0; count < 10; count++) queue.push(added++);
    for (let count = 0; count < 7; count++) {
      t.equal(queue.first, removed);
      t.equal(queue.shift(), removed++);
    }
    t.equal(queue.length, added - removed);
  }
  while (queue.length > 0) t.equal(queue.shift(), removed++);
  t.equal(removed, added);
  t.equal(queue.first, undefined);
  t.equal(queue.shift(), undefined);
});
