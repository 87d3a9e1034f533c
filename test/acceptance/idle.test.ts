// A node without clients hardly uses the processor. Wake-ups are counted, because the processor
// time of a wake-up depends on what else the machine does. `npm run bench -- idle` measures the
// time.

import { readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { spawnBroker } from "../support/broker.ts";
import { startRedis } from "../support/redis.ts";

const MAX_PER_SECOND = 30;
const SETTLE_MS = 2000;
const MEASURED_MS = 3000;

/** Returns how often the main thread of the process has waited so far. */
function waits(pid: number): number {
  const status = readFileSync(`/proc/${pid}/task/${pid}/status`, "utf8");
  return Number(/^voluntary_ctxt_switches:\s+(\d+)/m.exec(status)?.[1]);
}

const skip = process.platform === "linux" ? false : "the number of wake-ups is read from /proc";

for (const store of ["the embedded store", "Redis"])
  t.test(`an idle node on ${store} wakes up at most 30 times per second`, { skip }, async (t) => {
    const settings =
      store === "Redis" ? { JINDOU_REDIS_URL: (await startRedis(t)).url } : undefined;
    const { process: child } = await spawnBroker(t, settings);
    const pid = child.pid ?? 0;
    await pause(SETTLE_MS);
    const [before, startMs] = [waits(pid), performance.now()];
    await pause(MEASURED_MS);
    const perSecond = ((waits(pid) - before) * 1000) / (performance.now() - startMs);
    t.ok(perSecond > 0, "wake-ups are counted");
    t.ok(perSecond <= MAX_PER_SECOND, `${perSecond.toFixed(1)} wake-ups per second`);
  });
