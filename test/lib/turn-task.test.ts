// Tests when a task runs, relative to the end of an iteration of the event loop.

import { setImmediate as nextTurn } from "node:timers/promises";
import { runOverdueTasks, TurnTask } from "../../src/lib/turn-task.ts";
import { t } from "../support/suite.ts";

const OVERDUE_MS = 6;

/** Keeps the event loop busy for `ms`. */
function block(ms: number): void {
  const endMs = performance.now() + ms;
  while (performance.now() < endMs);
}

t.test("a scheduled task runs once, at the end of the event-loop iteration", async (t) => {
  let count = 0;
  const task = new TurnTask(() => {
    count += 1;
  });
  task.schedule();
  task.schedule();
  runOverdueTasks();
  t.equal(count, 0, "a task that was scheduled just now is not overdue");
  await nextTurn();
  t.equal(count, 1);
  block(OVERDUE_MS);
  runOverdueTasks();
  await nextTurn();
  t.equal(count, 1);
  task.schedule();
  await nextTurn();
  t.equal(count, 2, "the task can be scheduled again");
});

t.test("a task that has waited for 5 ms runs before the event-loop iteration ends", async (t) => {
  let count = 0;
  const task = new TurnTask(() => {
    count += 1;
    if (count === 1) task.schedule();
  });
  task.schedule();
  block(OVERDUE_MS);
  runOverdueTasks();
  t.equal(count, 1, "a task that its own step schedules is not overdue");
  await nextTurn();
  t.equal(count, 2);
});

t.test("a cancelled task does not run", async (t) => {
  let count = 0;
  const task = new TurnTask(() => {
    count += 1;
  });
  task.cancel();
  task.schedule();
  task.cancel();
  block(OVERDUE_MS);
  runOverdueTasks();
  await nextTurn();
  t.equal(count, 0);
});
