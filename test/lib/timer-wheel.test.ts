// Items that become due, each at its own time.

import { TimerWheel } from "../../src/lib/timer-wheel.ts";
import { t } from "../support/suite.ts";

t.test("items become due in the order of their times, and never early", async (t) => {
  const due: string[] = [];
  const startMs = performance.now();
  await new Promise<void>((resolve) => {
    const wheel = new TimerWheel<string>((item) => {
      due.push(item);
      if (item === "first") t.ok(performance.now() - startMs >= 1000, "not early");
      if (item === "last") resolve();
    });
    const holder = setInterval(() => {}, 1000); // the wheel does not keep the process alive
    t.teardown(() => clearInterval(holder));
    wheel.set("last", 2100);
    wheel.set("first", 1000);
    wheel.set("past", -5000);
    wheel.set("moved", 1000);
    wheel.set("moved", 3_600_000);
    wheel.set("deleted", 1000);
    wheel.delete("deleted");
    wheel.delete("unknown");
  });
  t.same(due, ["past", "first", "last"]);
});

t.test("an empty wheel has no timer", async (t) => {
  const wheel = new TimerWheel<number>(() => t.fail("nothing is due"));
  for (let item = 0; item < 1000; item++) wheel.set(item, 1000 * item);
  t.equal(wheel.size, 1000);
  for (let item = 0; item < 1000; item++) wheel.delete(item);
  t.equal(wheel.size, 0);
  t.notOk(process.getActiveResourcesInfo().includes("Timeout"), "no timer is left");
});
