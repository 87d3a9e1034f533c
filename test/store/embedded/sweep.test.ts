// What expired leaves the database and gives its space back.

import { statSync } from "node:fs";
import { join } from "node:path";
import { open } from "lmdb";
import type { Test } from "tap";
import type { DeviceFlag, SessionRecord } from "../../../src/broker/model.ts";
import { LOGIN_TTL_MS } from "../../../src/broker/ports.ts";
import type { EmbeddedOptions } from "../../../src/store/embedded/store.ts";
import { codeOf, draftOf } from "../../contract/store-fixture.ts";
import { eventOf } from "../../contract/store-stream-fixture.ts";
import { t } from "../../support/suite.ts";
import { brittleDatabase } from "./brittle-database.ts";
import { crashedCopy, openStore, seqsIn, testFolder } from "./folder.ts";

function given(t: Test, over: Partial<EmbeddedOptions> = {}) {
  const path = testFolder(t);
  const time = { nowMs: Date.UTC(2026, 0, 1) };
  const clock = () => time.nowMs;
  return { path, time, store: openStore(t, path, { clock, ...over }) };
}

/** Entries in a table of a copy of the folder. */
async function countIn(t: Test, path: string, name: string): Promise<number> {
  const copy = await crashedCopy(t, path);
  const env = open({ path: join(copy, "lmdb"), maxDbs: 16 });
  const count = env.openDB({ name, keyEncoding: "binary" }).getKeysCount({});
  await env.close();
  return count;
}

t.test("expired messages are removed, others stay, seqs go on", async (t) => {
  const { path, time, store: opening } = given(t);
  const store = await opening;
  for (let i = 0; i < 500; i++) void store.append(draftOf({ expireS: i % 2 === 0 ? 10 : 0 }));
  await store.append(draftOf({ expireS: 20 }));
  await store.checkpoint();
  t.equal(await store.sweep(), 0, "nothing is due");
  t.equal(await countIn(t, path, "log"), 501);
  time.nowMs += 10_000;
  t.equal(await store.sweep(), 250);
  t.equal(await countIn(t, path, "log"), 251);
  t.equal(await countIn(t, path, "expiry"), 1);
  t.equal(await countIn(t, path, "expiring"), 1);
  t.equal((await seqsIn(store)).length, 251);
  t.equal((await store.append(draftOf())).messageSeq, 502);
});

t.test("the space of expired messages is used again", async (t) => {
  const { path, time, store: opening } = given(t);
  const store = await opening;
  const payload = new Uint8Array(2000);
  const sizes: number[] = [];
  for (let round = 0; round < 6; round++) {
    for (let i = 0; i < 500; i++) void store.append(draftOf({ expireS: 1, payload }));
    await store.append(draftOf({ expireS: 1, payload }));
    await store.checkpoint();
    time.nowMs += 1000;
    t.equal(await store.sweep(), 501);
    sizes.push(statSync(join(path, "lmdb", "data.mdb")).size);
  }
  t.ok((sizes[5] ?? 0) <= (sizes[1] ?? 0) * 1.5, `${sizes}`);
});

t.test("with a retention time old messages leave every channel", async (t) => {
  const { path, time, store: opening } = given(t, { retentionS: 60 });
  const store = await opening;
  const send = (id: string) => store.append(draftOf({ channel: { id, type: 2 }, expireS: 3600 }));
  for (let i = 0; i < 300; i++) void send(`g${i % 3}`);
  await send("g0");
  await store.checkpoint();
  time.nowMs += 30_000;
  await send("g1");
  await store.checkpoint();
  t.equal(await store.sweep(), 0);
  time.nowMs += 30_000;
  t.same(await seqsIn(store, "2:g0"), [], "hidden before it is removed");
  t.same(await seqsIn(store, "2:g1"), [101]);
  t.equal(await store.sweep(), 301);
  t.equal(await countIn(t, path, "log"), 1);
  t.equal(await countIn(t, path, "expiring"), 1);
  t.equal(await store.headSeq("2:g0"), 101);
  t.equal((await send("g0")).messageSeq, 102);
});

t.test(
  "messages a channel does not keep leave with all that belongs to them, and do not come back",
  async (t) => {
    const over = { maxChannelMessages: 4 };
    const { path, time, store: opening } = given(t, over);
    const store = await opening;
    for (const type of ["___TextMessageStart", "___TextMessageEnd"])
      await store.streamEvent(eventOf(type));
    for (let i = 0; i < 450; i++) void store.append(draftOf({ expireS: 60 }));
    for (let i = 0; i < 3; i++) void store.append(draftOf());
    await store.append(draftOf({ expireS: 60 }));
    t.equal(await store.sweep(), 0, "none is in the database");
    await store.checkpoint();
    t.equal(await store.sweep(), 451);
    t.equal(await countIn(t, path, "log"), 2, "three in a row, and one");
    for (const name of ["expiry", "expiring"]) t.equal(await countIn(t, path, name), 1, name);
    for (const name of ["streams", "streamTraces", "streamNames"])
      t.equal(await countIn(t, path, name), 0, name);
    const left = [452, 453, 454, 455];
    t.same(await seqsIn(store), left);
    const clock = () => time.nowMs;
    const copy = await openStore(t, await crashedCopy(t, path), { clock });
    t.same(await seqsIn(copy), left);
  },
);

t.test(
  "a channel is looked at when it has a tenth more than it keeps, or when that failed",
  async (t) => {
    const { fail, databaseWrites } = brittleDatabase();
    const over = { maxChannelMessages: 100, databaseWrites };
    const store = await given(t, over).store;
    const send = async (count: number) => {
      for (let i = 1; i < count; i++) void store.append(draftOf());
      await store.append(draftOf());
      await store.checkpoint();
    };
    t.equal(await store.sweep(), 0);
    await send(105);
    t.equal(await store.sweep(), 5);
    await send(4);
    t.equal(await store.sweep(), 0);
    await send(1);
    fail.commit = 1;
    t.equal(await codeOf(store.sweep()), "unavailable");
    t.equal(await store.sweep(), 5);
    t.equal((await seqsIn(store)).at(0), 11);
  },
);

t.test("access tokens that ended are removed", async (t) => {
  const { path, time, store: opening } = given(t);
  const store = await opening;
  const hash = (byte: number) => new Uint8Array(32).fill(byte);
  await store.putAccessToken(hash(1), "admin", time.nowMs + 1000);
  await store.putAccessToken(hash(2), "admin", time.nowMs + 2000);
  time.nowMs += 1000;
  await store.sweep();
  t.equal(await countIn(t, path, "tokens"), 1);
  t.equal(await store.accessTokenOwner(hash(2)), "admin");
});

t.test("logins outlive the store, and are forgotten after a while", async (t) => {
  const { path, time, store: opening } = given(t);
  const store = await opening;
  const claim = { label: "l" };
  let sessions = 0;
  const session = (uid: string, flag: DeviceFlag = 0): SessionRecord => ({
    ...{ sessionId: `s${sessions++}`, nodeId: "n1", uid, flag, level: 1 },
    ...{ deviceId: "d", tokenTag: "" },
  });
  /** The place of the login, or why it is refused. */
  const enter = async (one: SessionRecord) => {
    const result = await store.login(one, "n1:1", { claim });
    if (result.kind === "unauthorized") throw new Error(result.kind);
    return result.kind === "entered" ? result.order : result.reason;
  };
  const uids = Array.from({ length: 3000 }, (_, at) => `u${at}`);
  const orders = await Promise.all(uids.map((uid) => enter(session(uid))));
  const ended = session("u0", 1);
  await enter(ended);
  await store.endSession(ended, "logged_out");
  await store.close();
  await store.start();
  time.nowMs += 1;
  t.same(await store.sessionsOf(["u0"]), [[]], "sessions do not");
  t.equal(await enter(session("u0")), orders[0]);
  t.equal(await enter(session("u0", 1)), "logged_out");
  time.nowMs += LOGIN_TTL_MS - 2;
  await enter(session("late"));
  t.equal(await enter(session("u1")), orders[1]);
  time.nowMs += 2;
  t.not(await enter(session("u2")), orders[2]);
  for (let round = 0; round < 2; round++) await store.sweep(); // each looks at a part
  t.equal(await countIn(t, path, "logins"), 3, "late, u1 and u2");
});
