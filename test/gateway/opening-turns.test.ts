// Tests how many logins run at the same time and in one turn of the event loop. The limits hold for
// all clients of a node together, so they can be observed only without a network.

import { setImmediate as nextTurn } from "node:timers/promises";
import { OpeningTurns } from "../../src/gateway/opening-turns.ts";
import { t } from "../support/suite.ts";

const SHORT_BYTES = 100;
const LONG_BYTES = 3000;

t.test("at most 24 logins with a long CONNECT and 128 others run at the same time", async (t) => {
  const openings = new OpeningTurns();
  for (const [bytes, limit] of [
    [LONG_BYTES, 24],
    [SHORT_BYTES, 128],
  ] as const) {
    const ends: (() => void)[] = [];
    const step = () => new Promise<void>((end) => ends.push(end));
    const done = Array.from({ length: limit + 10 }, () => openings.run(bytes, step));
    const begun = async (count: number, message: string) => {
      while (ends.length < count) await nextTurn();
      for (let turn = 0; turn < 3; turn++) await nextTurn();
      t.equal(ends.length, count, message);
    };
    await begun(limit, `${bytes} bytes`);
    for (const end of ends.slice(0, 4)) end();
    await begun(limit + 4, "each end lets one waiting login begin");
    for (const end of ends.slice(4)) end();
    await begun(limit + 10, "all logins begin");
    for (const end of ends) end();
    await Promise.all(done);
  }
});

t.test("logins are spread over several turns of the event loop", async (t) => {
  const openings = new OpeningTurns();
  const stepMs = 2;
  let count = 0;
  const step = async () => {
    const endMs = performance.now() + stepMs;
    while (performance.now() < endMs);
    count += 1;
  };
  const total = 60;
  const done = Array.from({ length: total }, () => openings.run(LONG_BYTES, step));
  t.ok(count <= 3 / stepMs + 1, `${count} logins ran at once`);
  let turns = 0;
  while (count < total) {
    await nextTurn();
    turns += 1;
  }
  // The logins take 120 ms. In a turn of 3 ms, the logins that end let as many others begin.
  t.ok(turns >= 6, `the logins ran in ${turns} turns`);
  await Promise.all(done);
});
