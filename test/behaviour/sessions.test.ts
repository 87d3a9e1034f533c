// Sessions as their clients see them: which login ends which session, the reason and close code a
// client gets, and which sessions stay. Also tests presence queries on the socket.

import { t } from "../support/suite.ts";
import { endingOf, startWorld } from "./world.ts";

const world = await startWorld(t);

// Covers [spec: Rule; decisions: Kick rule]
t.test(
  "a newer main device of a user kicks the older main device of the same flag with code 4200",
  async (t) => {
    const uid = world.name("alice");
    const older = await world.join(t, uid, { level: 1, deviceId: "phone" });
    const newer = await world.connect(t, uid, { deviceId: "tablet" });
    t.equal(await endingOf(older), "kicked 4200");
    t.equal(older.pushes.at(-1)?.kind, "disconnect", "the reason is pushed before the close");
    t.equal((await newer.ping()).kind, "pong");
    t.match(await world.status(uid), { online: 1, device_flag: 0 });
  },
);

// Covers [spec: Rule; decisions: Kick rule]
t.test(
  "secondary devices of one user and flag stay online together, even with a main device",
  async (t) => {
    const uid = world.name("alice");
    const first = await world.join(t, uid, { level: 0 });
    const second = await world.connect(t, uid, { deviceId: "b" });
    await world.register(uid, { level: 1 });
    const main = await world.connect(t, uid, { deviceId: "c" });
    for (const client of [first, second, main]) t.equal((await client.ping()).kind, "pong");
    await world.connect(t, uid, { deviceId: "d" });
    t.equal(await endingOf(main), "kicked 4200");
    for (const client of [first, second])
      t.equal((await client.ping()).kind, "pong", "the secondary devices stay");
  },
);

// Covers [spec: Rule; decisions: Kick rule]
t.test("main devices with different flags do not end each other's sessions", async (t) => {
  const uid = world.name("alice");
  const clients = [
    await world.join(t, uid, { flag: 0, level: 1 }),
    await world.join(t, uid, { flag: 1, level: 1 }),
    await world.join(t, uid, { flag: 2, level: 1 }),
  ];
  for (const client of clients) t.equal((await client.ping()).kind, "pong");
});

// Covers [spec: Rule]
t.test("main devices of different users do not end each other's sessions", async (t) => {
  const alice = await world.join(t, world.name("alice"), { level: 1 });
  await world.join(t, world.name("bob"), { level: 1 });
  t.equal((await alice.ping()).kind, "pong");
});

// Covers [decisions: Kick rule]
t.test(
  "exactly one of a user's main devices with the same flag that log in concurrently stays online",
  async (t) => {
    const uid = world.name("alice");
    await world.register(uid, { level: 1 });
    const logins = ["a", "b", "c", "d"].map((deviceId) =>
      world.connect(t, uid, { deviceId }).catch(() => undefined),
    );
    const connected = (await Promise.all(logins)).filter((client) => client !== undefined);
    const alive = await Promise.all(
      connected.map((client) => client.ping().catch(() => undefined)),
    );
    t.equal(alive.filter((pong) => pong !== undefined).length, 1);
    t.match(await world.status(uid), { online: 1, device_flag: 0 });
  },
);

// Covers [decisions: Kick rule]
for (const level of [0, 1] as const)
  t.test(
    `a new session with the same device id closes the older session with 4202 and without DISCONNECT, for device level ${level}`,
    async (t) => {
      const uid = world.name("alice");
      const device = { level, deviceId: "phone" };
      const older = await world.join(t, uid, device);
      const newer = await world.connect(t, uid, device);
      t.equal(await endingOf(older), "silent 4202");
      t.equal((await newer.ping()).kind, "pong");
      t.match(await world.status(uid), { online: 1 });
    },
  );

// Covers [decisions: Kick rule]
t.test("devices of different users or flags may have the same device id", async (t) => {
  const uid = world.name("alice");
  const deviceId = "phone";
  const app = await world.join(t, uid, { flag: 0, deviceId });
  const web = await world.join(t, uid, { flag: 1, deviceId });
  await world.join(t, world.name("bob"), { flag: 0, deviceId });
  t.equal((await app.ping()).kind, "pong");
  t.equal((await web.ping()).kind, "pong");
});

// Covers [feature: Online status]
t.test(
  "a user stays online when a kicked session closes after its successor logged in",
  async (t) => {
    const uid = world.name("alice");
    let current = await world.join(t, uid, { level: 1 });
    for (let round = 0; round < 5; round++) {
      const next = await world.connect(t, uid);
      t.equal(await endingOf(current), "kicked 4200");
      t.match(await world.status(uid), { online: 1 });
      current = next;
    }
    await current.disconnect();
    t.match(await world.status(uid), { online: 0 });
  },
);

// Covers [feature: disconnect]
t.test("a client that sends DISCONNECT is closed with 4206", async (t) => {
  const alice = await world.join(t, world.name("alice"));
  await alice.disconnect();
  t.equal(await endingOf(alice), "goodbye 4206");
});

// Covers [feature: presence query; decisions: Online status]
t.test(
  "a presence query on the socket returns one record per uid in request order, including duplicates",
  async (t) => {
    const [uid, nobody] = [world.name("alice"), world.name("nobody")];
    const alice = await world.join(t, uid, { flag: 2 });
    const { presence } = await alice.presence([nobody, uid, uid]);
    const online = { uid, online: true, flag: 2 };
    t.same(presence, [{ uid: nobody, online: false, flag: 0 }, online, online]);
    t.same((await alice.presence([])).presence, []);
    await world.join(t, uid, { flag: 1, level: 1 });
    const after = await alice.presence([uid]);
    t.same(after.presence, [{ uid, online: true, flag: 1 }]);
  },
);

// Covers [feature: connect]
t.test("the CONNACK contains the server time, the session, the node and the limits", async (t) => {
  const uid = world.name("alice");
  const { connack } = await world.join(t, uid);
  const second = (await world.connect(t, uid)).connack;
  t.ok(Math.abs(connack.serverTimeMs - Date.now()) < 60_000);
  t.not(connack.sessionId, second.sessionId);
  t.equal(connack.nodeId, second.nodeId);
  t.match(connack, { version: 1, resume: [] });
  t.same(connack.limits, {
    maxFrameBytes: 163_840,
    maxPayloadBytes: 65_536,
    idleTimeoutS: 56,
    maxFramesPerSecond: 500,
  });
});
