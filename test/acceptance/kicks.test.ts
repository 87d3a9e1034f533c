// Devices that log in at the same instant [spec: Rule, decisions: Kick rule]: who remains, what the
// others are told, and that the online status and the metrics say the same. JINDOU_TEST_ROUNDS
// raises the number of rounds.

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
  endedFor,
  eventually,
  farewellOf,
  logIn,
  logInAtOnce,
  registerMain,
  standingOf,
  TOKEN,
} from "./logins.ts";

const ROUNDS = volume(200, "JINDOU_TEST_ROUNDS");
const VARIANT_ROUNDS = Math.ceil(ROUNDS / 10);
const KICKED = CLOSE_REASONS.kicked.code;
const REPLACED = CLOSE_REASONS.replaced.code;
const OFFLINE = { online: 0, flag: 0, sessions: 0, connections: 0 };

/** True when every one of them was told that it is kicked, and closed so. */
function allKicked(ended: readonly Contender[]): boolean {
  return ended.every(
    ({ client, closeCode }) => closeCode === KICKED && farewellOf(client) === "kicked",
  );
}

const mains = (uid: string, count: number): Device[] =>
  Array.from({ length: count }, () => ({ uid, token: TOKEN }));

t.test(
  `two main devices at the same instant, ${ROUNDS} rounds: one remains, the other is kicked`,
  async (t) => {
    const broker = await spawnBroker(t);
    const random = new Random(ROUNDS);
    for (const flag of DEVICE_FLAGS) await registerMain(broker, "ann", flag);
    const winners = [0, 0];
    for (let round = 1; round <= ROUNDS; round++) {
      const flag = random.pick(DEVICE_FLAGS);
      const device = { uid: "ann", token: TOKEN, flag };
      const devices = [device, device];
      const impatient = random.flip();
      const { left, ended, contenders } = await logInAtOnce(broker, devices, {
        impatient,
      });
      const [winner] = left;
      if (winner === undefined || left.length !== 1 || !allKicked(ended))
        throw new Error(`round ${round}: ${ended.map((one) => one.closeCode)}`);
      const winnerAt = contenders[0]?.client === winner ? 0 : 1;
      winners[winnerAt] = (winners[winnerAt] ?? 0) + 1;
      const during = { online: 1, flag, sessions: 1, connections: 1 };
      t.same(await standingOf(broker, "ann"), during, `round ${round}`);
      t.equal(farewellOf(winner), undefined);
      await winner.disconnect();
      t.same(await standingOf(broker, "ann"), OFFLINE, `after round ${round}`);
    }
    t.comment(`the first to speak won ${winners[0]}, the second ${winners[1]}`);
    t.equal(await endedFor(broker, "kicked"), ROUNDS);
  },
);

t.test("many main devices at the same instant: one remains", async (t) => {
  const broker = await spawnBroker(t);
  await registerMain(broker, "ann");
  let kicked = 0;
  for (const count of [3, 3, 3, 3, 3, 20, 20]) {
    const crowd = mains("ann", count);
    const { left, ended } = await logInAtOnce(broker, crowd);
    t.ok(allKicked(ended), `all others of ${count} are kicked`);
    const during = { online: 1, flag: 0, sessions: 1, connections: 1 };
    t.same(await standingOf(broker, "ann"), during);
    kicked += count - 1;
    await left[0]?.disconnect();
  }
  t.equal(await endedFor(broker, "kicked"), kicked);
});

t.test(
  "a main device that is there already and two that come at once: one of the two remains",
  async (t) => {
    const broker = await spawnBroker(t);
    await registerMain(broker, "ann");
    let before = await logIn(broker, { uid: "ann", token: TOKEN });
    for (let round = 0; round < VARIANT_ROUNDS; round++) {
      const { left, ended } = await logInAtOnce(broker, mains("ann", 2));
      t.ok(allKicked(ended));
      const { code } = await before.closed;
      t.equal(code, KICKED);
      t.equal(farewellOf(before), "kicked");
      const during = { online: 1, flag: 0, sessions: 1, connections: 1 };
      t.same(await standingOf(broker, "ann"), during);
      if (left[0] !== undefined) before = left[0];
    }
    await before.disconnect();
  },
);

t.test("secondary devices at the same instant all stay, beside a main one of two", async (t) => {
  const broker = await spawnBroker(t, { JINDOU_AUTH_CLIENTS: "none" });
  const device = (level: DeviceLevel): Device => ({ uid: "ann", level });
  const main = device(MAIN_DEVICE);
  const secondary = device(SECONDARY_DEVICE);
  for (let round = 0; round < VARIANT_ROUNDS; round++) {
    const devices = [secondary, main, secondary, main];
    const { left, ended } = await logInAtOnce(broker, devices, {
      survivors: 3,
    });
    t.ok(allKicked(ended));
    t.equal(ended.length, 1);
    const during = { online: 1, flag: 0, sessions: 3, connections: 3 };
    t.same(await standingOf(broker, "ann"), during);
    for (const client of left) await client.disconnect();
    t.same(await standingOf(broker, "ann"), OFFLINE);
  }
});

t.test("main devices of different flags at the same instant all stay", async (t) => {
  const broker = await spawnBroker(t);
  for (const flag of DEVICE_FLAGS) await registerMain(broker, "ann", flag);
  const devices = DEVICE_FLAGS.map((flag) => ({
    ...{ uid: "ann", token: TOKEN, flag },
  }));
  const { left } = await logInAtOnce(broker, devices, { survivors: 3 });
  const during = { online: 1, flag: 0, sessions: 3, connections: 3 };
  t.same(await standingOf(broker, "ann"), during);
  for (const client of left) await client.disconnect();
});

t.test(
  "the same device id at the same instant, whatever the level: one remains, the other is closed in silence",
  async (t) => {
    const broker = await spawnBroker(t, { JINDOU_AUTH_CLIENTS: "none" });
    for (let round = 0; round < VARIANT_ROUNDS; round++) {
      const level = round % 2 === 0 ? MAIN_DEVICE : SECONDARY_DEVICE;
      const phone: Device = { uid: "ann", deviceId: "phone", level };
      const { left, ended } = await logInAtOnce(broker, [phone, phone]);
      t.same(
        ended.map(({ client, closeCode }) => [closeCode, farewellOf(client)]),
        [[REPLACED, undefined]],
      );
      const during = { online: 1, flag: 0, sessions: 1, connections: 1 };
      t.same(await standingOf(broker, "ann"), during);
      await left[0]?.disconnect();
    }
  },
);

t.test("a device that hangs up at the instant it is kicked leaves nothing behind", async (t) => {
  const broker = await spawnBroker(t);
  await registerMain(broker, "ann");
  const device = { uid: "ann", token: TOKEN };
  for (let round = 0; round < VARIANT_ROUNDS; round++) {
    const loser = await logIn(broker, device);
    const login = logIn(broker, device);
    if (round % 3 === 0) loser.kill();
    else void loser.close();
    const winner = await login;
    await eventually("the loser to be gone", async () => {
      const standing = await standingOf(broker, "ann");
      return standing.connections === 1 && standing.sessions === 1;
    });
    await winner.disconnect();
    t.same(await standingOf(broker, "ann"), OFFLINE);
  }
});
