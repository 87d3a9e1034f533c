// Users as a backend keeps them: tokens per device class, logging devices out, online status.
// Against a real broker and real sockets.

import { SYSTEM_UID } from "../../src/broker/model.ts";
import { tempFolder } from "../support/broker.ts";
import { t } from "../support/suite.ts";
import { codeOf, farewell, received, startWorld } from "./world.ts";

const world = await startWorld(t);

t.test(
  "POST /user/token: answers status ok, and the client connects with uid and token [spec: POST /user/token 200; spec: uid; spec: token; decisions: Success body of writes]",
  async (t) => {
    const uid = world.name("alice");
    const body = { uid, token: "secret", device_flag: 0, device_level: 1 };
    const answer = await world.call("/user/token", body);
    t.equal(answer.status, 200);
    t.same(answer.body, { status: "ok" });
    const alice = await world.connect(t, uid, { token: "secret" });
    t.equal((await alice.ping()).kind, "pong");
  },
);

t.test(
  "POST /user/token: a missing or wrong uid, token, flag or level is 400 and registers nothing [spec: POST /user/token 400]",
  async (t) => {
    const uid = world.name("alice");
    const right = { uid, token: "secret", device_flag: 0 };
    for (const change of [
      { uid: undefined },
      { token: undefined },
      { device_flag: undefined },
      { token: "" },
      { device_flag: 3 },
      { device_flag: "0" },
      { device_level: 2 },
    ]) {
      const body = { ...right, ...change };
      const code = await world.refusal("/user/token", body);
      t.equal(code, "400 bad_request", JSON.stringify(change));
    }
    const bad = { ...right, uid: "a@b" };
    t.equal(await world.refusal("/user/token", bad), "400 bad_id");
    const login = world.connect(t, uid, { token: "secret" });
    t.equal(await codeOf(login), "unauthorized");
  },
);

t.test(
  "device_flag: a token opens only the device class it is registered for [spec: device_flag; decisions: Client authentication]",
  async (t) => {
    const uid = world.name("alice");
    await world.register(uid, { flag: 2 });
    t.equal(await codeOf(world.connect(t, uid, { flag: 2 })), "ok");
    for (const flag of [0, 1] as const)
      t.equal(await codeOf(world.connect(t, uid, { flag })), "unauthorized");
    const wrong = { flag: 2, token: "another" } as const;
    t.equal(await codeOf(world.connect(t, uid, wrong)), "unauthorized");
  },
);

t.test(
  "device_level: absent is secondary, so two such devices stay side by side [decisions: device_level absent; spec: device_level]",
  async (t) => {
    const uid = world.name("alice");
    await world.ok("/user/token", { uid, token: "t", device_flag: 0 });
    const first = await world.connect(t, uid, { token: "t" });
    await world.connect(t, uid, { token: "t" });
    t.equal((await first.ping()).kind, "pong");
  },
);

t.test(
  "device_level: the registered one counts, whatever the client says [decisions: Which level counts]",
  async (t) => {
    const uid = world.name("alice");
    const first = await world.join(t, uid, { level: 0 });
    await world.connect(t, uid, { level: 1 });
    t.equal((await first.ping()).kind, "pong", "no main session came");

    const main = world.name("bob");
    const old = await world.join(t, main, { level: 1 });
    await world.connect(t, main, { level: 0 });
    t.equal(await farewell(old), "kicked 4200");
  },
);

t.test(
  "auth.clients none: any token will do, and the client names its own level [decisions: Client authentication]",
  async (t) => {
    const open = await startWorld(t, { JINDOU_AUTH_CLIENTS: "none" });
    const first = await open.connect(t, "alice", { token: "", level: 1 });
    const second = await open.connect(t, "alice", { token: "x", level: 0 });
    await open.connect(t, "alice", { token: "y", level: 1 });
    t.equal(await farewell(first), "kicked 4200");
    t.equal((await second.ping()).kind, "pong");
  },
);

t.test(
  "POST /user/token again: the new token holds at once and the old one no more [decisions: /user/token again]",
  async (t) => {
    const uid = world.name("alice");
    await world.register(uid, { token: "old" });
    await world.register(uid, { token: "new" });
    const old = world.connect(t, uid, { token: "old" });
    t.equal(await codeOf(old), "unauthorized");
    t.equal(await codeOf(world.connect(t, uid, { token: "new" })), "ok");
  },
);

t.test(
  "POST /user/token again: a changed token ends the main session of that flag only; an equal one changes nothing [decisions: /user/token again]",
  async (t) => {
    const uid = world.name("alice");
    const app = await world.join(t, uid, { flag: 0, level: 1 });
    const web = await world.join(t, uid, { flag: 1, level: 1 });
    await world.register(uid, { flag: 0, level: 1 });
    t.equal((await app.ping()).kind, "pong", "an equal token");
    await world.register(uid, { flag: 0, level: 1, token: "changed" });
    t.equal(await farewell(app), "token_changed 4203");
    t.equal((await web.ping()).kind, "pong", "another flag");
    t.match(await world.status(uid), { online: 1, device_flag: 1 });
  },
);

t.test(
  "POST /user/token again: a changed token leaves live secondary sessions alone [decisions: /user/token again]",
  async (t) => {
    const uid = world.name("alice");
    const app = await world.join(t, uid, { level: 0 });
    await world.register(uid, { level: 0, token: "changed" });
    t.equal((await app.ping()).kind, "pong");
  },
);

t.test(
  "the system uid neither registers a token nor connects [decisions: System uid]",
  async (t) => {
    const body = { uid: SYSTEM_UID, token: "t", device_flag: 0 };
    t.equal(await world.refusal("/user/token", body), "400 reserved_uid");
    const login = world.connect(t, SYSTEM_UID, { token: "t" });
    t.equal(await codeOf(login), "reserved_uid");
    const open = await startWorld(t, { JINDOU_AUTH_CLIENTS: "none" });
    t.equal(await codeOf(open.connect(t, SYSTEM_UID)), "reserved_uid");
  },
);

t.test(
  "POST /user/onlinestatus: one record per uid in request order, duplicates included [spec: POST /user/onlinestatus 200; spec: Online status record; decisions: Online status]",
  async (t) => {
    const [on, off] = [world.name("on"), world.name("off")];
    await world.join(t, on, { flag: 2 });
    const offline = { uid: off, online: 0, device_flag: 0 };
    const online = { uid: on, online: 1, device_flag: 2 };
    const answer = await world.call("/user/onlinestatus", [off, on, off, on]);
    t.equal(answer.status, 200);
    t.same(answer.body, [offline, online, offline, online]);
    t.same(await world.ok("/user/onlinestatus", []), []);
  },
);

t.test(
  "POST /user/onlinestatus: the flag is the main session's, else the lowest [decisions: Online status]",
  async (t) => {
    const uid = world.name("alice");
    const flags: number[] = [];
    const note = async () => {
      flags.push((await world.status(uid)).device_flag);
    };
    const desktop = await world.join(t, uid, { flag: 2, level: 1 });
    await note();
    await world.join(t, uid, { flag: 0 });
    await note();
    await desktop.disconnect();
    await note();
    t.same(flags, [2, 2, 0]);
  },
);

t.test(
  "POST /user/onlinestatus: what is no array of ids is 400 [spec: POST /user/onlinestatus 400]",
  async (t) => {
    const path = "/user/onlinestatus";
    t.equal(await world.refusal(path, { uids: ["a"] }), "400 bad_request");
    t.equal(await world.refusal(path, [5]), "400 bad_request");
    t.equal(await world.refusal(path, ["a#b"]), "400 bad_id");
  },
);

t.test(
  "a user is offline as soon as the last session is gone, however it went [issue: Online status]",
  async (t) => {
    const uid = world.name("alice");
    const said = await world.join(t, uid);
    const closed = await world.connect(t, uid);
    const vanished = await world.connect(t, uid);
    await said.disconnect();
    await closed.close();
    t.match(await world.status(uid), { online: 1 });
    vanished.kill();
    await world.offline(uid);
    t.same(await world.status(uid), { uid, online: 0, device_flag: 0 });
  },
);

t.test(
  "POST /user/device_quit: ends the class's sessions and makes its token worthless, others stay [issue: device_quit]",
  async (t) => {
    const uid = world.name("alice");
    const app = await world.join(t, uid, { flag: 0, level: 1 });
    const web = await world.join(t, uid, { flag: 1 });
    const quit = { uid, device_flag: 0 };
    t.same(await world.ok("/user/device_quit", quit), { status: "ok" });
    t.equal(await farewell(app), "logged_out 4204");
    t.equal(await codeOf(world.connect(t, uid)), "unauthorized");
    t.same(await received(web), []);
    await world.register(uid, { flag: 0, level: 1 });
    t.equal(await codeOf(world.connect(t, uid)), "ok", "registered anew");
  },
);

t.test(
  "POST /user/device_quit: -1 logs out every class, and a user without devices is no error [issue: device_quit]",
  async (t) => {
    const uid = world.name("alice");
    const clients = [
      await world.join(t, uid, { flag: 0 }),
      await world.join(t, uid, { flag: 1, level: 1 }),
      await world.join(t, uid, { flag: 2 }),
    ];
    await world.ok("/user/device_quit", { uid, device_flag: -1 });
    for (const client of clients) t.equal(await farewell(client), "logged_out 4204");
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

t.test(
  "tokens, and that a device was logged out, survive a restart [issue: Tokens survive]",
  async (t) => {
    const folder = await tempFolder(t);
    const before = await startWorld(t, {}, folder);
    await before.register("alice", { flag: 0, level: 1 });
    await before.register("alice", { flag: 1 });
    await before.ok("/user/device_quit", { uid: "alice", device_flag: 1 });
    await before.close();
    const after = await startWorld(t, {}, folder);
    const old = await after.connect(t, "alice", { flag: 0 });
    const web = after.connect(t, "alice", { flag: 1 });
    t.equal(await codeOf(web), "unauthorized");
    await after.connect(t, "alice", { flag: 0 });
    t.equal(await farewell(old), "kicked 4200", "it is still a main device");
  },
);
