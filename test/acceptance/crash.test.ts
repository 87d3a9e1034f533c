// kill -9 under load, again and again on one growing data folder: what was acknowledged stays, what
// was not is sent again and stored once. JINDOU_TEST_ROUNDS raises the number of kills (give tap a
// longer --timeout with it), JINDOU_TEST_SEED repeats the choice of messages.

import t, { type Test } from "tap";
import { FORMATS } from "../behaviour/formats/formats.ts";
import { joinFormat } from "../behaviour/formats/join.ts";
import { group, range, wire, worldOf } from "../behaviour/world.ts";
import { BUSY_STORE, type Settings, spawnBroker, tempFolder } from "../support/broker.ts";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import { CrashWorld } from "./crash-world.ts";

const ROUNDS = volume(20, "JINDOU_TEST_ROUNDS");
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const DISK_ROUNDS = volume(10);

const FORMAT_KILLS = 2;
/** Sends of each client between two kills. */
const FORMAT_SENDS = 100;
/** Of each client: the others are sent after the kill. */
const IN_FLIGHT = 10;

/** Kills fall into sweeps too. */
const SWEEPING: Settings = { JINDOU_STORE_SWEEP_INTERVAL_MS: "100" };
/** Every write waits for the disk: many are written and not answered at a kill. */
const DISK: Settings = { JINDOU_STORE_DURABILITY: "disk" };

/** Every second start of the broker is with a store that is always busy. */
async function crashRepeatedly(t: Test, rounds: number, settings: Settings): Promise<void> {
  t.comment(`seed ${SEED}`);
  const world = await CrashWorld.found(t, new Random(SEED), settings);
  const busy = { ...settings, ...SWEEPING };
  for (let round = 0; round < rounds; round++)
    if (round % 2 === 0) await world.round(busy, BUSY_STORE);
    else await world.round(settings);
  await world.judgeAll();
  await world.close();
  const { interrupted, checker } = world;
  t.comment(`${checker.acknowledgedCount} acknowledged`);
  t.comment(`${interrupted} interrupted and sent again`);
  t.ok(interrupted > 0, "kills fell while messages were under way");
}

t.test(`${ROUNDS} kills under load lose and repeat nothing [DESIGN 2.5]`, (t) =>
  crashRepeatedly(t, ROUNDS, {}),
);

t.test("kills while writes wait for the disk lose and repeat nothing", (t) =>
  crashRepeatedly(t, DISK_ROUNDS, DISK),
);

t.test("kills lose and repeat nothing in any wire format", async (t) => {
  const data = await tempFolder(t);
  const channel = group("everybody");
  const uids = FORMATS.map((_, at) => `user-${at}`);
  /** The seq that was acknowledged, by client message number. */
  const acknowledged = new Map<string, number>();
  let interrupted = 0;
  for (let round = 1; round <= FORMAT_KILLS + 1; round++) {
    const broker = await spawnBroker(t, {}, data);
    const world = worldOf(broker);
    if (round === 1)
      await world.ok("/channel", {
        ...wire(channel),
        subscribers: [...uids, "reader"],
      });
    const clients = await Promise.all(
      FORMATS.map((format, at) =>
        joinFormat(t, world, format, uids[at] ?? "", { deviceId: "phone" }),
      ),
    );
    const isLast = round > FORMAT_KILLS;
    let answers = 0;
    const send = async (at: number, number: number): Promise<void> => {
      const clientMsgNo = `${uids[at]}-${number}`;
      const before = acknowledged.get(clientMsgNo);
      try {
        const seq = await clients[at]?.send(channel, clientMsgNo, {
          clientMsgNo,
        });
        if (before !== undefined && seq !== before)
          t.fail(`${clientMsgNo} was ${before} and is ${seq}`);
        if (seq !== undefined) acknowledged.set(clientMsgNo, seq);
      } catch (error) {
        if (isLast) throw error;
        interrupted += 1;
      }
      answers += 1;
      const isHalf = answers === (clients.length * FORMAT_SENDS) / 2;
      if (isHalf && !isLast) await broker.kill();
    };
    const numbers = range(1, Math.min(round, FORMAT_KILLS) * FORMAT_SENDS);
    await Promise.all(
      clients.flatMap((_, at) => {
        const waiting = numbers[Symbol.iterator](); // of all that send
        return range(1, IN_FLIGHT).map(async () => {
          for (const number of waiting) await send(at, number);
        });
      }),
    );
    if (!isLast) continue;

    const reader = await world.join(t, "reader");
    const stored = new Map<string, number>();
    for (let fromSeq = 1, more = true; more; ) {
      const page = await reader.history(channel, { fromSeq });
      for (const { clientMsgNo, messageSeq } of page.messages) {
        if (stored.has(clientMsgNo)) t.fail(`${clientMsgNo} is there twice`);
        stored.set(clientMsgNo, messageSeq);
        fromSeq = messageSeq + 1;
      }
      more = page.more;
    }
    t.same(stored, acknowledged);
    t.equal(stored.size, clients.length * numbers.length);
  }
  t.ok(interrupted > 0, "kills fell while messages were under way");
});
