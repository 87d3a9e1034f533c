// Jobs that are split into slices of the event loop.

import { setImmediate } from "node:timers/promises";
import { TimeSlice, Turns } from "../../src/lib/time-slice.ts";
import { t } from "../support/suite.ts";

t.test("jobs with a common `Turns` continue in different turns of the event loop", async (t) => {
  const turns = new Turns();
  const order: string[] = [];
  const job = async (name: string) => {
    const slice = new TimeSlice(1, turns);
    for (let step = 0; step < 2; step++) {
      await slice.yield();
      order.push(name);
    }
  };
  const jobs = Promise.all(["a", "b", "c"].map(job));
  for (let turn = 1; turn <= 6; turn++) {
    await setImmediate();
    t.equal(order.length, turn);
  }
  await jobs;
  t.same(order, ["a", "b", "c", "a", "b", "c"]);
});
