// Tests how many steps run in one turn of the event loop.

import { setImmediate as nextTurn } from "node:timers/promises";
import { PacedSteps } from "../../src/lib/paced-steps.ts";
import { t } from "../support/suite.ts";

const MAX_MS = 2;
const STEP_MS = 1;

/** Keeps the event loop busy for `ms`. */
function block(ms: number): void {
  const endMs = performance.now() + ms;
  while (performance.now() < endMs);
}

t.test("a step runs at once if this turn of the event loop has time left", async (t) => {
  const steps = new PacedSteps(MAX_MS);
  let count = 0;
  steps.run(() => count++);
  t.equal(count, 1);
  await nextTurn();
  block(2 * MAX_MS); // the time of other work before the first step does not count
  steps.run(() => count++);
  t.equal(count, 2);
});

t.test(
  "steps for which a turn has no time left run in later turns, in the order of their calls and for a limited time in each turn",
  async (t) => {
    const steps = new PacedSteps(MAX_MS);
    const order: number[] = [];
    const total = 20;
    for (let step = 0; step < total; step++)
      steps.run(() => {
        block(STEP_MS);
        order.push(step);
      });
    t.ok(order.length <= MAX_MS / STEP_MS + 1, `${order.length} steps ran at once`);
    let turns = 0;
    while (order.length < total) {
      const before = order.length;
      t.equal(steps.isIdle, false);
      await nextTurn();
      turns += 1;
      const count = order.length - before;
      t.ok(count <= MAX_MS / STEP_MS + 1, `${count} steps ran in one turn`);
      if (turns === 1) steps.run(() => order.push(total)); // waits for the steps before it
    }
    for (let turn = 0; turn < 3; turn++) await nextTurn();
    t.equal(steps.isIdle, true);
    t.same(
      order,
      Array.from({ length: total + 1 }, (_, step) => step),
    );
  },
);

t.test("the time of a turn includes work that a step continues in a promise", async (t) => {
  const steps = new PacedSteps(MAX_MS);
  let count = 0;
  steps.run(() => block(2 * MAX_MS)); // uses up the time of this turn
  for (let step = 0; step < 10; step++)
    steps.run(() => {
      void Promise.resolve().then(() => {
        block(STEP_MS);
        count += 1;
      });
    });
  for (let turns = 0; count < 10; turns++) {
    const before = count;
    await nextTurn();
    t.ok(count - before <= MAX_MS / STEP_MS + 2, `${count - before} steps ran in one turn`);
    if (turns > 20) t.fail("the steps do not run");
  }
});
