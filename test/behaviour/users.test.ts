// Users as a backend manages them: tokens per device class, logging devices out, and the online
// status. Uses a real broker and real sockets.

import { SYSTEM_UID } from "../../src/broker/model.ts";
import { tempFolder } from "../support/broker.ts";
import { t } from "../support/suite.ts";
import { codeOf, endingOf, receivedTexts, startWorld } from "./world.ts";

const world = await startWorld(t);

// Covers [spec: POST /user/token 200; spec: uid; spec: token; decisions: Success body of writes]
t.test("POST /user/token registers a token with which the client can connect", async (t) => {
  const uid = world.name("alice");
  const body = { uid, token: "secret", device_flag: 0, device_level: 1 };
  const response = await world.call("/user/token", body);
  t.equal(response.status, 200);
  t.same(response.body, { status: "ok" });
  const alice = await world.connect(t, uid, { token: "secret" });
  t.equal((await alice.ping()).kind, "pong");
});

// Covers [spec: POST /user/token 400]
t.test(
  "POST /user/token responds with 400 to a missing or invalid field and registers nothing",
  async (t) => {
    const uid = world.name("alice");
    const valid = { uid, token: "secret", device_flag: 0 };
    for (const change of [
      { uid: undefined },
      { token: undefined },
      { device_flag: undefined },
      { token: "" },
      { device_flag: 3 },
      { device_flag: "0" },
      { device_level: 2 },
    ]) {
      const body = { ...valid, ...change };
      const code = await world.refusal("/user/token", body);
      t.equal(code, "400 bad_request", `${JSON.stringify(change)} is refused`);
    }
    const bad = { ...valid, uid: "a@b" };
    t.equal(await world.refusal("/user/token", bad), "400 bad_id");
    const login = world.connect(t, uid, { token: "secret" });
    t.equal(await codeOf(login), "unauthorized");
  },
);

// Covers [spec: device_flag; decisions: Client authentication]
t.test("a token is valid only for the device_flag it was registered with", async (t) => {
  const uid = world.name("alice");
  await world.register(uid, { flag: 2 });
  t.equal(await codeOf(world.connect(t, uid, { flag: 2 })), "ok");
  for (const flag of [0, 1] as const)
    t.equal(await codeOf(world.connect(t, uid, { flag })), "unauthorized");
  const wrong = { flag: 2, token: "another" } as const;
  t.equal(await codeOf(world.connect(t, uid, wrong)), "unauthorized");
});

// Covers [decisions: device_level absent; spec: device_level]
t.test(
  "a device registered without device_level is secondary, so two such devices stay online together",
  async (t) => {
    const uid = world.name("alice");
    await world.ok("/user/token", { uid, token: "t", device_flag: 0 });
    const first = await world.connect(t, uid, { token: "t" });
    await world.connect(t, uid, { token: "t" });
    t.equal((await first.ping()).kind, "pong");
  },
);

// Covers [decisions: Which level counts]
t.test("the registered device_level applies, not the device level in CONNECT", async (t) => {
  const uid = world.name("alice");
  const first = await world.join(t, uid, { level: 0 });
  await world.connect(t, uid, { level: 1 });
  t.equal((await first.ping()).kind, "pong", "the new session is not a main session");

  const main = world.name("bob");
  const older = await world.join(t, main, { level: 1 });
  await world.connect(t, main, { level: 0 });
  t.equal(await endingOf(older), "kicked 4200");
});

// Covers [decisions: Client authentication]
t.test(
  "any token is accepted and the client chooses its device level if auth.clients is none",
  async (t) => {
    const open = await startWorld(t, { JINDOU_AUTH_CLIENTS: "none" });
    const first = await open.connect(t, "alice", { token: "", level: 1 });
    const second = await open.connect(t, "alice", { token: "x", level: 0 });
    await open.connect(t, "alice", { token: "y", level: 1 });
    t.equal(await endingOf(first), "kicked 4200");
    t.equal((await second.ping()).kind, "pong");
  },
);

// Covers [decisions: /user/token again]
t.test(
  "a second POST /user/token makes the new token valid and the old token invalid at once",
  async (t) => {
    const uid = world.name("alice");
    await world.register(uid, { token: "old" });
    await world.register(uid, { token: "new" });
    const old = world.connect(t, uid, { token: "old" });
    t.equal(await codeOf(old), "unauthorized");
    t.equal(await codeOf(world.connect(t, uid, { token: "new" })), "ok");
  },
);

// Covers [decisions: /user/token again]
t.test(
  "a changed token ends only the main session of its device flag, and an unchanged token ends no session",
  async (t) => {
    const uid = world.name("alice");
    const app = await world.join(t, uid, { flag: 0, level: 1 });
    const web = await world.join(t, uid, { flag: 1, level: 1 });
    await world.register(uid, { flag: 0, level: 1 });
    t.equal((await app.ping()).kind, "pong", "an unchanged token does not end the session");
    await world.register(uid, { flag: 0, level: 1, token: "changed" });
    t.equal(await endingOf(app), "token_changed 4203");
    t.equal((await web.ping()).kind, "pong", "a session of another flag stays online");
    t.match(await world.status(uid), { online: 1, device_flag: 1 });
  },
);

// Covers [decisions: /user/token again]
t.test("a changed token does not end live secondary sessions", async (t) => {
  const uid = world.name("alice");
  const app = await world.join(t, uid, { level: 0 });
  await world.register(uid, { level: 0, token: "changed" });
  t.equal((await app.ping()).kind, "pong");
});

// Covers [decisions: System uid]
t.test("the system uid cannot register a token or connect", async (t) => {
  const body = { uid: SYSTEM_UID, token: "t", device_flag: 0 };
  t.equal(await world.refusal("/user/token", body), "400 reserved_uid");
  const login = world.connect(t, SYSTEM_UID, { token: "t" });
  t.equal(await codeOf(login), "reserved_uid");
  const open = await startWorld(t, { JINDOU_AUTH_CLIENTS: "none" });
  t.equal(await codeOf(open.connect(t, SYSTEM_UID)), "reserved_uid");
});

// Covers [spec: POST /user/onlinestatus 200; spec: Online status record; decisions: Online status]
t.test(
  "POST /user/onlinestatus returns one record per uid in request order, including duplicates",
  async (t) => {
    const [on, off] = [world.name("on"), world.name("off")];
    await world.join(t, on, { flag: 2 });
    const offline = { uid: off, online: 0, device_flag: 0 };
    const online = { uid: on, online: 1, device_flag: 2 };
    const response = await world.call("/user/onlinestatus", [off, on, off, on]);
    t.equal(response.status, 200);
    t.same(response.body, [offline, online, offline, online]);
    t.same(await world.ok("/user/onlinestatus", []), []);
  },
);

// Covers [decisions: Online status]
t.test(
  "POST /user/onlinestatus returns the flag of the main session, or else the lowest flag",
  async (t) => {
    const uid = world.name("alice");
    const flags: number[] = [];
    const recordFlag = async () => {
      flags.push((await world.status(uid)).device_flag);
    };
    const desktop = await world.join(t, uid, { flag: 2, level: 1 });
    await recordFlag();
    await world.join(t, uid, { flag: 0 });
    await recordFlag();
    await desktop.disconnect();
    await recordFlag();
    t.same(flags, [2, 2, 0]);
  },
);

// Covers [spec: POST /user/onlinestatus 400]
t.test(
  "POST /user/onlinestatus responds with 400 to a body that is not an array of valid ids",
  async (t) => {
    const path = "/user/onlinestatus";
    t.equal(await world.refusal(path, { uids: ["a"] }), "400 bad_request");
    t.equal(await world.refusal(path, [5]), "400 bad_request");
    t.equal(await world.refusal(path, ["a#b"]), "400 bad_id");
  },
);

// Covers [feature: Online status]
t.test(
  "a user is offline as soon as the last session has ended with DISCONNECT, with a close, or because the connection was lost",
  async (t) => {
    const uid = world.name("alice");
    const disconnected = await world.join(t, uid);
    const closed = await world.connect(t, uid);
    const vanished = await world.connect(t, uid);
    await disconnected.disconnect();
    await closed.close();
    t.match(await world.status(uid), { online: 1 });
    vanished.kill();
    await world.offline(uid);
    t.same(await world.status(uid), { uid, online: 0, device_flag: 0 });
  },
);

// Covers [feature: device_quit]
t.test(
  "POST /user/device_quit ends the sessions of a device class and revokes its token, and other classes stay online",
  async (t) => {
    const uid = world.name("alice");
    const app = await world.join(t, uid, { flag: 0, level: 1 });
    const web = await world.join(t, uid, { flag: 1 });
    const quit = { uid, device_flag: 0 };
    t.same(await world.ok("/user/device_quit", quit), { status: "ok" });
    t.equal(await endingOf(app), "logged_out 4204");
    t.equal(await codeOf(world.connect(t, uid)), "unauthorized");
    t.same(await receivedTexts(web), []);
    await world.register(uid, { flag: 0, level: 1 });
    t.equal(await codeOf(world.connect(t, uid)), "ok", "a new token is accepted");
  },
);

// Covers [feature: device_quit]
t.test(
  "POST /user/device_quit with device_flag -1 logs out every device class, and succeeds for a user without devices",
  async (t) => {
    const uid = world.name("alice");
    const clients = [
      await world.join(t, uid, { flag: 0 }),
      await world.join(t, uid, { flag: 1, level: 1 }),
      await world.join(t, uid, { flag: 2 }),
    ];
    await world.ok("/user/device_quit", { uid, device_flag: -1 });
    for (const client of clients) t.equal(await endingOf(client), "logged_out 4204");
    for (const flag of [0, 1, 2] as const)
      t.equal(await codeOf(world.connect(t, uid, { flag })), "unauthorized");
    t.match(await world.status(uid), { online: 0 });
    const nobody = { uid: world.name("nobody"), device_flag: -1 };
    t.same(await world.ok("/user/device_quit", nobody), { status: "ok" });
    for (const device_flag of [-2, 3, "0", undefined]) {
      const code = await world.refusal("/user/device_quit", {
        uid,
        device_flag,
      });
      t.equal(code, "400 bad_request");
    }
  },
);

// Covers [feature: Tokens survive]
t.test("tokens and device logouts survive a restart", async (t) => {
  const folder = await tempFolder(t);
  const before = await startWorld(t, {}, folder);
  await before.register("alice", { flag: 0, level: 1 });
  await before.register("alice", { flag: 1 });
  await before.ok("/user/device_quit", { uid: "alice", device_flag: 1 });
  await before.close();
  const after = await startWorld(t, {}, folder);
  const first = await after.connect(t, "alice", { flag: 0 });
  const web = after.connect(t, "alice", { flag: 1 });
  t.equal(await codeOf(web), "unauthorized");
  await after.connect(t, "alice", { flag: 0 });
  t.equal(await endingOf(first), "kicked 4200", "the device is still a main device");
});
