// Devices that log in at the same time [spec: Rule, decisions: Kick rule]: which of them stays
// online, how the others are disconnected, and that the online status and the metrics agree.
// JINDOU_TEST_ROUNDS sets the number of rounds.

import t from "tap";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import {
  DEVICE_FLAGS,
  type DeviceLevel,
  MAIN_DEVICE,
  SECONDARY_DEVICE,
} from "../../src/broker/model.ts";
import { spawnBroker } from "../support/broker.ts";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import {
  type Contender,
  type Device,
  disconnectReasonOf,
  endedCount,
  eventually,
  logIn,
  logInAtOnce,
  onlineStateOf,
  registerMain,
  TOKEN,
} from "./logins.ts";

const ROUNDS = volume(200, "JINDOU_TEST_ROUNDS");
const VARIANT_ROUNDS = Math.ceil(ROUNDS / 10);
const KICKED = CLOSE_REASONS.kicked.code;
const REPLACED = CLOSE_REASONS.replaced.code;
const OFFLINE = { online: 0, flag: 0, sessions: 0, connections: 0 };

/**
 * Returns true if each contender got a disconnect frame with the reason `kicked` and was closed
 * with the code of that reason.
 */
function allKicked(ended: readonly Contender[]): boolean {
  return ended.every(
    ({ client, closeCode }) => closeCode === KICKED && disconnectReasonOf(client) === "kicked",
  );
}

/** The tests run one after the other and end with nobody online, so they can share brokers. */
const broker = await spawnBroker(t);
const openBroker = await spawnBroker(t, { JINDOU_AUTH_CLIENTS: "none" });

const mains = (uid: string, count: number): Device[] =>
  Array.from({ length: count }, () => ({ uid, token: TOKEN }));

t.test(
  `if two main devices with the same flag log in at the same time, exactly one stays online and the other is kicked`,
  async (t) => {
    const random = new Random(ROUNDS);
    const kickedBefore = await endedCount(broker, "kicked");
    for (const flag of DEVICE_FLAGS) await registerMain(broker, "ann", flag);
    const winners = [0, 0];
    for (let round = 1; round <= ROUNDS; round++) {
      const flag = random.pick(DEVICE_FLAGS);
      const device = { uid: "ann", token: TOKEN, flag };
      const devices = [device, device];
      const connectAtOnce = random.flip();
      const { survivors, ended, contenders } = await logInAtOnce(broker, devices, {
        connectAtOnce,
      });
      const [winner] = survivors;
      if (winner === undefined || survivors.length !== 1 || !allKicked(ended))
        throw new Error(`round ${round}: ${ended.map(({ closeCode }) => closeCode)}`);
      const winnerAt = contenders[0]?.client === winner ? 0 : 1;
      winners[winnerAt] = (winners[winnerAt] ?? 0) + 1;
      const during = { online: 1, flag, sessions: 1, connections: 1 };
      t.same(await onlineStateOf(broker, "ann"), during, `the winner of round ${round} is online`);
      t.equal(
        disconnectReasonOf(winner),
        undefined,
        "the device that stayed online gets no disconnect frame",
      );
      await winner.disconnect();
      t.same(
        await onlineStateOf(broker, "ann"),
        OFFLINE,
        `the user is offline after round ${round}`,
      );
    }
    t.comment(`the first to send CONNECT won ${winners[0]} times, the second ${winners[1]} times`);
    const kicked = (await endedCount(broker, "kicked")) - kickedBefore;
    t.equal(kicked, ROUNDS, "the metrics count every kick");
  },
);

t.test(
  "exactly one of many main devices with the same flag that log in at the same time stays online",
  async (t) => {
    await registerMain(broker, "ann");
    const kickedBefore = await endedCount(broker, "kicked");
    let kicked = 0;
    for (const count of [3, 3, 3, 3, 3, 20, 20]) {
      const crowd = mains("ann", count);
      const { survivors, ended } = await logInAtOnce(broker, crowd);
      t.ok(allKicked(ended), `${count - 1} of ${count} devices are kicked`);
      const during = { online: 1, flag: 0, sessions: 1, connections: 1 };
      t.same(await onlineStateOf(broker, "ann"), during);
      kicked += count - 1;
      await survivors[0]?.disconnect();
    }
    const counted = (await endedCount(broker, "kicked")) - kickedBefore;
    t.equal(counted, kicked, "the metrics count every kick");
  },
);

t.test(
  "an online main device is kicked when two other main devices log in at the same time, and exactly one of these two stays online",
  async (t) => {
    await registerMain(broker, "ann");
    let before = await logIn(broker, { uid: "ann", token: TOKEN });
    for (let round = 0; round < VARIANT_ROUNDS; round++) {
      const { survivors, ended } = await logInAtOnce(broker, mains("ann", 2));
      t.ok(allKicked(ended), "the loser is kicked");
      const { code } = await before.closed;
      t.equal(code, KICKED, "the device that was online is kicked");
      t.equal(disconnectReasonOf(before), "kicked");
      const during = { online: 1, flag: 0, sessions: 1, connections: 1 };
      t.same(await onlineStateOf(broker, "ann"), during);
      if (survivors[0] !== undefined) before = survivors[0];
    }
    await before.disconnect();
  },
);

t.test(
  "secondary devices that log in together with two main devices stay online, and exactly one of the main devices is kicked",
  async (t) => {
    const broker = openBroker;
    const device = (level: DeviceLevel): Device => ({ uid: "ann", level });
    const main = device(MAIN_DEVICE);
    const secondary = device(SECONDARY_DEVICE);
    for (let round = 0; round < VARIANT_ROUNDS; round++) {
      const devices = [secondary, main, secondary, main];
      const { survivors, ended } = await logInAtOnce(broker, devices, {
        survivorCount: 3,
      });
      t.ok(allKicked(ended), "the other main device is kicked");
      t.equal(ended.length, 1);
      const during = { online: 1, flag: 0, sessions: 3, connections: 3 };
      t.same(await onlineStateOf(broker, "ann"), during);
      for (const client of survivors) await client.disconnect();
      t.same(await onlineStateOf(broker, "ann"), OFFLINE);
    }
  },
);

t.test(
  "main devices with different flags that log in at the same time all stay online",
  async (t) => {
    for (const flag of DEVICE_FLAGS) await registerMain(broker, "ann", flag);
    const devices = DEVICE_FLAGS.map((flag) => ({
      ...{ uid: "ann", token: TOKEN, flag },
    }));
    const { survivors } = await logInAtOnce(broker, devices, { survivorCount: 3 });
    const during = { online: 1, flag: 0, sessions: 3, connections: 3 };
    t.same(await onlineStateOf(broker, "ann"), during);
    for (const client of survivors) await client.disconnect();
  },
);

t.test(
  "one of two sessions that log in concurrently with the same device id stays online, and the other is closed without a disconnect frame",
  async (t) => {
    const broker = openBroker;
    for (let round = 0; round < VARIANT_ROUNDS; round++) {
      const level = round % 2 === 0 ? MAIN_DEVICE : SECONDARY_DEVICE;
      const phone: Device = { uid: "ann", deviceId: "phone", level };
      const { survivors, ended } = await logInAtOnce(broker, [phone, phone]);
      t.same(
        ended.map(({ client, closeCode }) => [closeCode, disconnectReasonOf(client)]),
        [[REPLACED, undefined]],
      );
      const during = { online: 1, flag: 0, sessions: 1, connections: 1 };
      t.same(await onlineStateOf(broker, "ann"), during);
      await survivors[0]?.disconnect();
    }
  },
);

t.test("a device that disconnects while it is being kicked leaves no session behind", async (t) => {
  await registerMain(broker, "ann");
  const device = { uid: "ann", token: TOKEN };
  for (let round = 0; round < VARIANT_ROUNDS; round++) {
    const loser = await logIn(broker, device);
    const login = logIn(broker, device);
    if (round % 3 === 0) loser.kill();
    else void loser.close();
    const winner = await login;
    await eventually("the loser to be offline", async () => {
      const state = await onlineStateOf(broker, "ann");
      return state.connections === 1 && state.sessions === 1;
    });
    await winner.disconnect();
    t.same(await onlineStateOf(broker, "ann"), OFFLINE);
  }
});
