// Fills a small disk and frees it again, ten times, while eight writers commit batches of ten rows.
// Then counts the rows that lmdb reported as written and that are missing. Usage: see
// lmdb-full-disk.md.

import { ftruncateSync, openSync, writeSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { open } from "lmdb";

const [path, filler] = process.argv.slice(2);
const env = open({ path, eventTurnBatching: false });
const fence = env.openDB({ name: "fence", useVersions: true });
const rows = env.openDB({ name: "rows", encoding: "binary", keyEncoding: "binary" });
await fence.put("owner", 1, 1);
process.on("unhandledRejection", () => {}); // of the single puts, which the batch reports as well
const fd = openSync(filler, "w");
const fill = () => {
  try {
    for (let at = 0; ; at += 65536) writeSync(fd, Buffer.alloc(65536), 0, 65536, at);
  } catch {}
};
const written = new Set();
let rejected = 0,
  hanging = 0,
  isRunning = true;
async function writer(w) {
  for (let batch = 0; isRunning; batch++) {
    const keys = Array.from({ length: 10 }, (_, i) => `${w}-${(batch * 7919) % 1000003}-${i}`);
    const done = fence.ifVersion("owner", 1, () => {
      for (const key of keys) void rows.put(Buffer.from(key), Buffer.alloc(500));
    });
    const result = await Promise.race([done.catch(() => "rejected"), pause(8000, "hangs")]);
    if (result === "hangs") {
      hanging++;
      return;
    }
    if (result === true) for (const k of keys) written.add(k);
    else {
      rejected++;
      await pause(5);
    }
  }
}
const writers = Array.from({ length: 8 }, (_, w) => writer(w));
for (let round = 0; round < 10; round++) {
  await pause(150);
  fill();
  await pause(200);
  ftruncateSync(fd, 0);
}
isRunning = false;
await Promise.all(writers);
env.resetReadTxn();
let missing = 0;
for (const key of written) if (rows.get(Buffer.from(key)) === undefined) missing++;
process.stdout.write(
  `${missing} of ${written.size} rows that were reported as written are missing; ${rejected} batches were rejected, ${hanging} never settled\n`,
);
setImmediate(() => process.exit());
