// Banned accounts in the dialect of WuKongIM: their sessions and readers end, and they cannot log
// in until the ban ends. Outside the dialect, `ban` does not affect the account.

import { setTimeout } from "node:timers/promises";
import { openJsonRpc } from "../support/jsonrpc-client.ts";
import { t } from "../support/suite.ts";
import { openWkproto, WKPROTO_LISTENER, wkprotoPortOf } from "../support/wkproto-client.ts";
import { codeOf, endingOf, group, person, startWorld, type World, wire } from "./world.ts";

const DIALECT = { JINDOU_API_DIALECT: "wukongim" };
const world = await startWorld(t, { ...DIALECT, ...WKPROTO_LISTENER });
const CLOSE = "banned 4207";

/** Sets the flags of the user's personal channel. Absent flags become 0. */
const setFlags = (target: World, uid: string, flags: object) =>
  target.call("/channel/info", { ...wire(person(uid)), ...flags });

const registered = async (target: World, uid: string) =>
  (await target.call("/user/token", { uid, token: `token-${uid}`, device_flag: 0 })).body;

// Covers [decisions: A banned account]
for (const path of ["/channel", "/channel/info"])
  t.test(
    `in the wukongim dialect, ${path} with ban 1 ends all sessions of the account as banned, and its logins are refused until ban is 0`,
    async (t) => {
      const [alice, bob, watcher] = [world.name("alice"), world.name("bob"), world.name("watcher")];
      const ban = (ban: number) => world.call(path, { ...wire(person(alice)), ban });
      const main = await world.join(t, alice, { flag: 0, level: 1 });
      const web = await world.join(t, alice, { flag: 1 });
      const other = await world.join(t, bob);
      const observer = await world.join(t, watcher);
      await observer.watch([alice]);
      t.same((await ban(1)).body, { status: 200 });
      for (const client of [main, web]) t.equal(await endingOf(client), CLOSE);
      await observer.waitFor(
        () => observer.pushesOf("presence").some(({ presence }) => presence.some((p) => !p.online)),
        "the push that the banned user is offline",
      );
      t.equal(await codeOf(world.connect(t, alice)), "banned");
      t.same(await registered(world, alice), { status: 19 });
      t.same((await ban(1)).body, { status: 200 }, "a ban can be repeated");
      t.equal((await other.ping()).kind, "pong", "other users are not affected");
      t.same((await ban(0)).body, { status: 200 });
      t.same(await registered(world, alice), { status: 200 });
      t.equal(await codeOf(world.connect(t, alice)), "ok");
    },
  );

// Covers [decisions: A banned account]
t.test(
  "a banned user is refused in each wire format, with reason 19 in WuKongIM's protocols",
  async (t) => {
    const alice = world.name("alice");
    const port = world.clientPort;
    await world.register(alice, { flag: 1 });
    const wkproto = await openWkproto(t, { port: wkprotoPortOf(world), uid: alice });
    t.equal((await wkproto.connect()).reasonCode, 1);
    const rpc = await openJsonRpc(t, { port });
    const login = { uid: alice, token: `token-${alice}`, deviceFlag: 1, deviceId: "other" };
    t.equal((await rpc.request("connect", login)).reasonCode, 1);
    await setFlags(world, alice, { ban: 1 });
    t.equal((await wkproto.next("DISCONNECT")).reasonCode, 19);
    t.equal((await rpc.next("disconnect")).reasonCode, 19);
    t.equal((await rpc.closed).code, 4207);
    const refused = await openWkproto(t, { port: wkprotoPortOf(world), uid: alice });
    t.equal((await refused.connect()).reasonCode, 19);
    const again = await openJsonRpc(t, { port });
    const { error } = await again.exchange("1", { method: "connect", params: login, id: "1" });
    t.equal(error?.data?.reasonCode ?? error?.code, 19);
    t.equal((await again.closed).code, 4207);
    const extended = await openJsonRpc(t, { port });
    const params = { protocol: 1, ...login };
    const response = await extended.exchange("1", { method: "connect", params, id: "1" });
    t.equal(response.error?.data?.name, "banned");
    t.equal((await extended.closed).code, 4207);
  },
);

// Covers [decisions: A banned account]
t.test("a banned user cannot read streams, and the user's open stream responses end", async (t) => {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  await world.register(alice);
  const channel = group(world.name("group"));
  await world.call("/channel", { ...wire(channel), subscribers: [alice, bob] });
  await world.call("/event", {
    ...{ client_msg_no: "s1", ...wire(channel), from_uid: bob },
    event: { type: "___TextMessageStart" },
  });
  const url = `http://127.0.0.1:${world.clientPort}/stream/2/${channel.id}/s1?uid=${alice}&token=token-${alice}&device_flag=0`;
  const open = () => fetch(url, { headers: { accept: "text/event-stream" } });
  const reader = await open();
  t.equal(reader.status, 200);
  await setFlags(world, alice, { ban: 1 });
  await reader.text(); // resolves when the reply ends
  const refused = await open();
  t.equal(refused.status, 403);
  t.match(await refused.json(), { code: "banned" });
  await setFlags(world, alice, {});
  const allowed = await open();
  t.equal(allowed.status, 200, "an absent field ban counts as 0");
  await allowed.body?.cancel();
});

// Covers [decisions: A banned account]
t.test(
  "a ban ends the user's open readers of a stream at once, and refuses their next requests as banned",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    await world.register(alice);
    const channel = group(world.name("group"));
    await world.call("/channel", { ...wire(channel), subscribers: [alice, bob] });
    const stream = { client_msg_no: "s1", ...wire(channel), from_uid: bob };
    await world.call("/event", { ...stream, event: { type: "___TextMessageStart" } });
    const client = `http://127.0.0.1:${world.clientPort}`;
    const log = `${client}/v1/stream/channel/2/${channel.id}/s1`;
    const caller = { "x-uid": alice, "x-token": `token-${alice}`, "x-device-flag": "0" };
    const get = (url: string, accept = "*/*") => fetch(url, { headers: { ...caller, accept } });
    const follow = () => get(`${client}/stream/2/${channel.id}/s1`, "text/event-stream");
    const readers = [follow, () => get(`${log}?offset=now&live=sse`)];
    const feeds = await Promise.all(readers.map((open) => open()));
    for (const { status } of feeds) t.equal(status, 200);
    const poll = () => get(`${log}?offset=now&live=long-poll`);
    const waiting = poll();
    await setTimeout(200); // the long poll waits now, and would wait 20 s
    const bannedAtMs = performance.now();
    await setFlags(world, alice, { ban: 1 });
    const [polled, ...texts] = await Promise.all([waiting, ...feeds.map((feed) => feed.text())]);
    t.ok(performance.now() - bannedAtMs < 5000, "all readers end at once");
    t.notMatch(texts.join(), "streamClosed", "the stream itself continues");
    for (const reply of [polled, ...(await Promise.all([...readers, poll].map((open) => open())))])
      t.match([reply.status, await reply.json()], [403, { code: "banned", status: 403 }]);
  },
);

// Covers [decisions: A banned account]
t.test(
  "in the wukongim dialect, a disbanded account cannot register a token, and its open sessions continue",
  async (t) => {
    const alice = world.name("alice");
    const client = await world.join(t, alice);
    await setFlags(world, alice, { disband: 1 });
    t.same(await registered(world, alice), { status: 24 });
    t.equal((await client.ping()).kind, "pong");
    const refused = await setFlags(world, alice, { ban: 1 });
    t.equal(refused.status, 400, "the record of a disbanded account cannot be changed");
    t.equal((await client.ping()).kind, "pong", "a refused call changes nothing");
  },
);

// Covers [decisions: A banned account]
t.test("a ban survives a restart", async (t) => {
  const first = await startWorld(t, DIALECT);
  await first.register("alice");
  await setFlags(first, "alice", { ban: 1 });
  await first.close();
  const second = await startWorld(t, DIALECT, first.dataPath);
  t.equal(await codeOf(second.connect(t, "alice")), "banned");
  t.same(await registered(second, "alice"), { status: 19 });
});

// Covers [decisions: Personal channel record]
t.test(
  "outside the wukongim dialect, ban 1 on a personal channel does not ban the account",
  async (t) => {
    const plain = await startWorld(t);
    const client = await plain.join(t, "alice");
    await plain.ok("/channel", { ...wire(person("alice")), ban: 1 });
    t.equal((await client.ping()).kind, "pong");
    t.same(await registered(plain, "alice"), { status: "ok" });
    t.equal(await codeOf(plain.connect(t, "alice")), "ok");
    t.equal((await plain.send("bob", person("alice"), "no")).status, 403);
  },
);
