// Kills the broker under load, repeatedly and on one growing data folder. Acknowledged messages
// stay, and messages sent again are stored once. JINDOU_TEST_ROUNDS sets the number of kills (raise
// tap's --timeout with it), and JINDOU_TEST_SEED repeats the choice of messages.

import t, { type Test } from "tap";
import { FORMATS } from "../behaviour/formats/formats.ts";
import { joinFormat } from "../behaviour/formats/join.ts";
import { group, range, wire, worldOf } from "../behaviour/world.ts";
import { BUSY_STORE, type Settings, spawnBroker, tempFolder } from "../support/broker.ts";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import { TCP_LISTENER } from "../support/wkproto-client.ts";
import { CrashWorld } from "./crash-world.ts";

const ROUNDS = volume(20, "JINDOU_TEST_ROUNDS");
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const DISK_ROUNDS = volume(10);

const FORMAT_KILLS = 2;
/** Number of new messages each client sends in each round that ends with a kill. */
const FORMAT_SENDS = 100;
/**
 * Maximum number of messages a client has in flight. Messages interrupted by a kill are sent again
 * in the next round.
 */
const IN_FLIGHT = 10;

/** Settings with which kills often happen during a retention sweep. */
const SWEEPING: Settings = { JINDOU_STORE_SWEEP_INTERVAL_MS: "100" };
/**
 * Settings with which every write waits for the disk, so that many messages are stored but not
 * acknowledged at a kill.
 */
const DISK: Settings = { JINDOU_STORE_DURABILITY: "disk" };

/** Runs the rounds. Every second start uses a store that is always busy. */
async function crashRepeatedly(t: Test, rounds: number, settings: Settings): Promise<void> {
  t.comment(`seed ${SEED}`);
  const world = await CrashWorld.create(t, new Random(SEED), settings);
  const busy = { ...settings, ...SWEEPING };
  for (let round = 0; round < rounds; round++)
    if (round % 2 === 0) await world.round(busy, BUSY_STORE);
    else await world.round(settings);
  await world.checkAll();
  await world.close();
  const { interrupted, checker } = world;
  t.comment(`${checker.acknowledgedCount} messages were acknowledged`);
  t.comment(`${interrupted} messages were in flight at a kill and were sent again`);
  t.ok(interrupted > 0, "messages were in flight at the kills");
}

t.test(`a broker killed ${ROUNDS} times under load neither loses nor duplicates a message`, (t) =>
  crashRepeatedly(t, ROUNDS, {}),
);

t.test(
  "a broker killed while writes wait for the disk neither loses nor duplicates a message",
  (t) => crashRepeatedly(t, DISK_ROUNDS, DISK),
);

t.test("a killed broker neither loses nor duplicates a message in any wire format", async (t) => {
  const data = await tempFolder(t);
  const channel = group("everybody");
  const uids = FORMATS.map((_, at) => `user-${at}`);
  /** Acknowledged seq of each message, by `clientMsgNo`. */
  const acknowledged = new Map<string, number>();
  let interrupted = 0;
  for (let round = 1; round <= FORMAT_KILLS + 1; round++) {
    const broker = await spawnBroker(t, TCP_LISTENER, data);
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
    let sendCount = 0;
    const send = async (at: number, number: number): Promise<void> => {
      const clientMsgNo = `${uids[at]}-${number}`;
      const firstSeq = acknowledged.get(clientMsgNo);
      try {
        const seq = await clients[at]?.send(channel, clientMsgNo, {
          clientMsgNo,
        });
        if (firstSeq !== undefined && seq !== firstSeq)
          t.fail(`${clientMsgNo} had seq ${firstSeq} and now has ${seq}`);
        if (seq !== undefined) acknowledged.set(clientMsgNo, seq);
      } catch (error) {
        if (isLast) throw error;
        interrupted += 1;
      }
      sendCount += 1;
      const isHalf = sendCount === (clients.length * FORMAT_SENDS) / 2;
      if (isHalf && !isLast) await broker.kill();
    };
    const numbers = range(1, Math.min(round, FORMAT_KILLS) * FORMAT_SENDS);
    await Promise.all(
      clients.flatMap((_, at) => {
        const remaining = numbers[Symbol.iterator](); // shared by the senders of this client
        return range(1, IN_FLIGHT).map(async () => {
          for (const number of remaining) await send(at, number);
        });
      }),
    );
    if (!isLast) continue;

    const reader = await world.join(t, "reader");
    const stored = new Map<string, number>();
    for (let fromSeq = 1, more = true; more; ) {
      const page = await reader.history(channel, { fromSeq });
      for (const { clientMsgNo, messageSeq } of page.messages) {
        if (stored.has(clientMsgNo)) t.fail(`${clientMsgNo} is in history twice`);
        stored.set(clientMsgNo, messageSeq);
        fromSeq = messageSeq + 1;
      }
      more = page.more;
    }
    t.same(stored, acknowledged, "history contains each acknowledged message once");
    t.equal(stored.size, clients.length * numbers.length);
  }
  t.ok(interrupted > 0, "messages were in flight at the kills");
});
