// Sessions as their owners see them: who ends whom, what a client is told and with which close
// code, what stays. Also presence on the socket.

import { t } from "../support/suite.ts";
import { farewell, startWorld } from "./world.ts";

const world = await startWorld(t);

t.test(
  "main devices of one user and flag: the newer ends the older, which is told kicked and closed with 4200 [spec: Rule; decisions: Kick rule]",
  async (t) => {
    const uid = world.name("alice");
    const old = await world.join(t, uid, { level: 1, deviceId: "phone" });
    const fresh = await world.connect(t, uid, { deviceId: "tablet" });
    t.equal(await farewell(old), "kicked 4200");
    t.equal(old.pushes.at(-1)?.kind, "disconnect", "told before the close");
    t.equal((await fresh.ping()).kind, "pong");
    t.match(await world.status(uid), { online: 1, device_flag: 0 });
  },
);

t.test(
  "secondary devices of one user and flag coexist, also beside a main one [spec: Rule; decisions: Kick rule]",
  async (t) => {
    const uid = world.name("alice");
    const first = await world.join(t, uid, { level: 0 });
    const second = await world.connect(t, uid, { deviceId: "b" });
    await world.register(uid, { level: 1 });
    const main = await world.connect(t, uid, { deviceId: "c" });
    for (const client of [first, second, main]) t.equal((await client.ping()).kind, "pong");
    await world.connect(t, uid, { deviceId: "d" });
    t.equal(await farewell(main), "kicked 4200");
    for (const client of [first, second])
      t.equal((await client.ping()).kind, "pong", "secondary ones stay");
  },
);

t.test(
  "main devices of different flags do not end each other [spec: Rule; decisions: Kick rule]",
  async (t) => {
    const uid = world.name("alice");
    const clients = [
      await world.join(t, uid, { flag: 0, level: 1 }),
      await world.join(t, uid, { flag: 1, level: 1 }),
      await world.join(t, uid, { flag: 2, level: 1 }),
    ];
    for (const client of clients) t.equal((await client.ping()).kind, "pong");
  },
);

t.test("main devices of different users do not end each other [spec: Rule]", async (t) => {
  const alice = await world.join(t, world.name("alice"), { level: 1 });
  await world.join(t, world.name("bob"), { level: 1 });
  t.equal((await alice.ping()).kind, "pong");
});

t.test(
  "of main devices that log in at once exactly one survives [decisions: Kick rule]",
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

for (const level of [0, 1] as const)
  t.test(
    `the same device id replaces its older session silently, level ${level}: no reason is told, 4202 [decisions: Kick rule]`,
    async (t) => {
      const uid = world.name("alice");
      const device = { level, deviceId: "phone" };
      const old = await world.join(t, uid, device);
      const fresh = await world.connect(t, uid, device);
      t.equal(await farewell(old), "silent 4202");
      t.equal((await fresh.ping()).kind, "pong");
      t.match(await world.status(uid), { online: 1 });
    },
  );

t.test(
  "a device id means the same device only for one user and flag [decisions: Kick rule]",
  async (t) => {
    const uid = world.name("alice");
    const deviceId = "phone";
    const app = await world.join(t, uid, { flag: 0, deviceId });
    const web = await world.join(t, uid, { flag: 1, deviceId });
    await world.join(t, world.name("bob"), { flag: 0, deviceId });
    t.equal((await app.ping()).kind, "pong");
    t.equal((await web.ping()).kind, "pong");
  },
);

t.test(
  "a kicked session's close does not take its successor offline [issue: Online status]",
  async (t) => {
    const uid = world.name("alice");
    let current = await world.join(t, uid, { level: 1 });
    for (let round = 0; round < 5; round++) {
      const next = await world.connect(t, uid);
      t.equal(await farewell(current), "kicked 4200");
      t.match(await world.status(uid), { online: 1 });
      current = next;
    }
    await current.disconnect();
    t.match(await world.status(uid), { online: 0 });
  },
);

t.test("a client that says goodbye is closed with 4206 [issue: disconnect]", async (t) => {
  const alice = await world.join(t, world.name("alice"));
  await alice.disconnect();
  t.equal(await farewell(alice), "goodbye 4206");
});

t.test(
  "presence on the socket: one record per uid in order, duplicates included, as over HTTP [issue: presence query; decisions: Online status]",
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

t.test("the connack tells server time, session, node and limits [issue: connect]", async (t) => {
  const uid = world.name("alice");
  const { connack } = await world.join(t, uid);
  const second = (await world.connect(t, uid)).connack;
  t.ok(Math.abs(connack.serverTimeMs - Date.now()) < 60_000);
  t.not(connack.sessionId, second.sessionId);
  t.equal(connack.nodeId, second.nodeId);
  t.match(connack, { version: 1, resume: [] });
  t.same(connack.limits, {
    maxFrameBytes: 131_072,
    maxPayloadBytes: 65_536,
    idleTimeoutS: 120,
    maxFramesPerSecond: 500,
  });
});
