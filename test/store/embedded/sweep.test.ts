// The sweep: expired data is removed from the database and its space is reused.

import { statSync } from "node:fs";
import { join } from "node:path";
import { open } from "lmdb";
import type { Test } from "tap";
import { EVENTS_START } from "../../../src/broker/event-ports.ts";
import { bucketOf } from "../../../src/broker/log-frame.ts";
import type { DeviceFlag, SessionRecord } from "../../../src/broker/model.ts";
import { STREAM_CONTENT, STREAM_END, STREAM_START } from "../../../src/broker/model.ts";
import { LOGIN_TTL_MS, LOGOUT_TTL_MS } from "../../../src/broker/ports.ts";
import { recordAt, rowOf } from "../../../src/store/embedded/engine/log-rows.ts";
import type { EmbeddedOptions } from "../../../src/store/embedded/store.ts";
import { free, draftOf as logDraftOf } from "../../contract/log-fixture.ts";
import { codeOf, draftOf } from "../../contract/store-fixture.ts";
import { commandOf } from "../../contract/store-inbox.ts";
import { eventOf } from "../../contract/store-stream-fixture.ts";
import { t } from "../../support/suite.ts";
import { brittleDatabase } from "./brittle-database.ts";
import { ALL, crashedCopy, damageRow, openStore, seqsIn, testFolder } from "./folder.ts";

function setUp(t: Test, over: Partial<EmbeddedOptions> = {}) {
  const path = testFolder(t);
  const time = { nowMs: Date.UTC(2026, 0, 1) };
  const clock = () => time.nowMs;
  return { path, time, store: openStore(t, path, { clock, ...over }) };
}

/** Returns the number of rows of a table in a copy of the folder. */
async function countIn(t: Test, path: string, name: string): Promise<number> {
  const copy = await crashedCopy(t, path);
  const env = open({ path: join(copy, "lmdb"), maxDbs: 16 });
  const count = env.openDB({ name, keyEncoding: "binary" }).getKeysCount({});
  await env.close();
  return count;
}

t.test("expired messages are removed, other messages stay, and no seq is reused", async (t) => {
  const { path, time, store: opening } = setUp(t);
  const store = await opening;
  for (let i = 0; i < 500; i++) void store.append(draftOf({ expireS: i % 2 === 0 ? 10 : 0 }));
  await store.append(draftOf({ expireS: 20 }));
  await store.checkpoint();
  t.equal(await store.sweep(), 0, "nothing has expired yet");
  t.equal(await countIn(t, path, "log"), 501);
  time.nowMs += 10_000;
  t.equal(await store.sweep(), 250);
  t.equal(await countIn(t, path, "log"), 251);
  t.equal(await countIn(t, path, "expiry"), 1);
  t.equal(await countIn(t, path, "expiring"), 1);
  t.equal((await seqsIn(store)).length, 251);
  t.equal((await store.append(draftOf())).messageSeq, 502);
});

t.test("a device is removed a day after its logout, unless it received a new token", async (t) => {
  const { time, store: opening } = setUp(t);
  const store = await opening;
  const put = (uid: string, flag: DeviceFlag, token: string) =>
    store.putDevice({ uid, flag, level: 0, tokenHash: Buffer.from(token) });
  const kept = async () => {
    const devices = await Promise.all(
      [0, 1, 2].map((flag) => store.device("a", flag as DeviceFlag)),
    );
    return devices.map((device) => device !== undefined);
  };
  await put("a", 0, "token");
  for (const flag of [0, 1, 2] as const) await put("a", flag, "");
  await put("a", 2, "token");
  await store.putBan("a", true);
  time.nowMs += LOGOUT_TTL_MS - 1000;
  await store.sweep();
  t.same(await kept(), [true, true, true]);
  time.nowMs += 1000;
  await store.sweep();
  t.same(await kept(), [false, false, true], "the device with a token stays");
  t.ok(await store.isBanned("a"), "the ban stays");
});

t.test("the disk space of expired messages is reused", async (t) => {
  const { path, time, store: opening } = setUp(t);
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
  t.ok(
    (sizes[5] ?? 0) <= (sizes[1] ?? 0) * 1.5,
    `the database does not keep growing: ${sizes} bytes`,
  );
});

t.test("messages older than the retention time are removed from every channel", async (t) => {
  const { path, time, store: opening } = setUp(t, { retentionS: 60 });
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
  t.same(await seqsIn(store, "2:g0"), [], "a message is hidden before it is removed");
  t.same(await seqsIn(store, "2:g1"), [101]);
  t.equal(await store.sweep(), 301);
  t.equal(await countIn(t, path, "log"), 1);
  t.equal(await countIn(t, path, "expiring"), 1);
  t.equal(await store.headSeq("2:g0"), 101);
  t.equal((await send("g0")).messageSeq, 102);
});

t.test(
  "messages over `maxChannelMessages` are removed with all their rows, and do not reappear after a crash",
  async (t) => {
    const over = { maxChannelMessages: 4 };
    const { path, time, store: opening } = setUp(t, over);
    const store = await opening;
    for (const type of ["___TextMessageStart", "___TextMessageEnd"])
      await store.streamEvent(eventOf(type));
    for (let i = 0; i < 450; i++) void store.append(draftOf({ expireS: 60 }));
    for (let i = 0; i < 3; i++) void store.append(draftOf());
    await store.append(draftOf({ expireS: 60 }));
    t.equal(await store.sweep(), 0, "no message is in the database yet");
    await store.checkpoint();
    t.equal(await store.sweep(), 451);
    t.equal(await countIn(t, path, "log"), 2, "one row has three messages, and one row has one");
    for (const name of ["expiry", "expiring"]) t.equal(await countIn(t, path, name), 1, name);
    for (const name of ["logNames", "logHeads", "streamEnds"])
      t.equal(await countIn(t, path, name), 0, name);
    const remainingSeqs = [452, 453, 454, 455];
    t.same(await seqsIn(store), remainingSeqs);
    const clock = () => time.nowMs;
    const copy = await openStore(t, await crashedCopy(t, path), { clock });
    t.same(await seqsIn(copy), remainingSeqs);
  },
);

t.test(
  "a channel above a `maxChannelMessages` of 100 is swept when its newest seq reaches or passes a multiple of 10, and again after a failed sweep",
  async (t) => {
    const { fail, databaseWrites } = brittleDatabase();
    const over = { maxChannelMessages: 100, databaseWrites };
    const store = await setUp(t, over).store;
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

t.test(
  "a sweep does not remove messages that a checkpoint is writing again after a failure",
  async (t) => {
    const { fail, databaseWrites } = brittleDatabase();
    let sweepAt = Number.POSITIVE_INFINITY;
    let sweeping: Promise<number> | undefined;
    const batch: typeof databaseWrites.batch = async (env, steps, write) => {
      const result = databaseWrites.batch(env, steps, write);
      if (fail.commits === sweepAt) sweeping = store.sweep();
      return result;
    };
    const over = { maxChannelMessages: 50, databaseWrites: { ...databaseWrites, batch } };
    const store = await setUp(t, { ...over, onError() {} }).store;
    const send = async (count: number) => {
      for (let i = 1; i < count; i++) void store.append(draftOf());
      await store.append(draftOf());
    };
    await send(10);
    fail.commit = 4; // after the numbers, the heads and the messages
    await store.checkpoint();
    await t.rejects(store.ping(), { code: "unavailable" }, "the first checkpoint failed");
    await send(54);
    sweepAt = fail.commits + 2; // the messages, after the heads
    await store.checkpoint();
    await sweeping;
    t.equal((await seqsIn(store)).length, 64, "all messages are stored");
    t.equal(await store.sweep(), 14, "a later sweep removes the messages over the limit");
  },
);

/** Overwrites the second message of the channel 2:g in the first row of a closed store. */
async function damageSecondMessage(path: string): Promise<void> {
  const env = open({ path: join(path, "lmdb"), maxDbs: 48 });
  const log = env.openDB<Buffer, Buffer>({
    ...{ name: "log", keyEncoding: "binary", encoding: "binary" },
  });
  for (const { key, value } of log.getRange({ limit: 1 })) {
    recordAt(rowOf(1, value), 2).fill(255);
    await log.put(key, value);
  }
  await env.close();
}

t.test(
  "a row that cannot be read is removed once none of its messages is among the newest `maxChannelMessages` of the channel",
  async (t) => {
    const problems: string[] = [];
    const onError = (_: Error, what: string) => void problems.push(what);
    const limits = { maxChannelMessages: 5, onError };
    const { path, store: opening } = setUp(t, limits);
    const store = await opening;
    for (let i = 0; i < 7; i++) await store.append(draftOf());
    await store.close();
    await damageSecondMessage(path);
    const reopened = await openStore(t, path, limits);
    t.equal(await reopened.sweep(), 0);
    for (const reverse of [false, true]) {
      const { messages } = await reopened.readMessages("2:g", { ...ALL, reverse });
      t.same(
        messages.map(({ messageSeq }) => messageSeq).sort(),
        [1, 3, 4, 5, 6, 7],
        "only the damaged message is left out of the history",
      );
    }
    for (let i = 0; i < 63; i++) await reopened.append(draftOf());
    await reopened.checkpoint();
    t.equal(await reopened.sweep(), 65, "the row of 64 messages, and the first message after it");
    t.same(await seqsIn(reopened), [66, 67, 68, 69, 70]);
    t.same(problems, [
      "Could not read messages that may be due for removal",
      "Could not read a stored message, so it is left out of the history",
    ]);
  },
);

t.test(
  "a row that cannot be read is removed when a newer row is past the retention time",
  async (t) => {
    const over = { retentionS: 60, onError() {} };
    const { path, time, store: opening } = setUp(t, over);
    const store = await opening;
    const payload = new Uint8Array(9000); // a row has room for one message
    for (let i = 0; i < 2; i++) await store.append(draftOf());
    await store.append(draftOf({ payload }));
    await store.append(draftOf({ payload }));
    await store.close();
    await damageSecondMessage(path);
    const clock = () => time.nowMs;
    const reopened = await openStore(t, path, { clock, ...over });
    time.nowMs += 59_999;
    t.equal(await reopened.sweep(), 0);
    time.nowMs += 1;
    t.ok((await reopened.sweep()) >= 4);
    t.equal(await countIn(t, path, "log"), 0);
  },
);

t.test("messages that cannot be read are removed when they expire", async (t) => {
  const { path, time, store: opening } = setUp(t);
  const store = await opening;
  for (let i = 0; i < 3; i++) await store.append(draftOf({ expireS: 10 }));
  await store.close();
  await damageRow(path, "log", { at: 1 });
  const reopened = await openStore(t, path, { clock: () => time.nowMs, onError() {} });
  time.nowMs += 10_000;
  t.equal(await reopened.sweep(), 3);
  for (const name of ["log", "expiry", "expiring"]) t.equal(await countIn(t, path, name), 0, name);
});

t.test(
  "a stream that could not be read when the store started is removed with its message",
  async (t) => {
    const problems: string[] = [];
    const onError = (_: Error, what: string) => void problems.push(what);
    const limits = { maxChannelMessages: 1, onError };
    const { path, store: opening } = setUp(t, limits);
    const store = await opening;
    await store.streamEvent(eventOf(STREAM_START));
    await store.checkpoint();
    const data = "x".repeat(20_000); // in a row of its own
    await store.streamEvent(eventOf(STREAM_CONTENT, data));
    await store.close();
    await damageRow(path, "logFrames", { at: 1 });
    const reopened = await openStore(t, path, limits);
    t.same(problems, ["Could not load a stream, so it accepts no further events"]);
    await reopened.append(draftOf());
    await reopened.checkpoint();
    t.equal(await reopened.sweep(), 1);
    for (const name of ["logNames", "logHeads", "logFrames", "streamsActive"])
      t.equal(await countIn(t, path, name), 0, name);
  },
);

t.test(
  "events that cannot be read do not stop the reading and the removal of other events",
  async (t) => {
    const problems = new Set<string>();
    const onError = (_: Error, what: string) => void problems.add(what);
    const { path, store: opening } = setUp(t);
    const store = await opening;
    await store.switchFeed(true);
    for (const key of ["2:g", "2:g", "2:g", "2:h"] as const) {
      await store.append(draftOf({ key }));
      await store.checkpoint(); // each event in a row of its own
    }
    await store.close();
    const [partition, other] = [bucketOf("2:g"), bucketOf("2:h")];
    await damageRow(path, "events", { at: partition < other ? 1 : 2, encoding: "msgpack" });
    const reopened = await openStore(t, path, { onError });
    const { rows } = await reopened.readEvents(partition, EVENTS_START, 9);
    t.same(
      rows.map(({ number }) => number),
      [1, 3],
    );
    t.same(await reopened.readEvents(partition, { number: 2, id: rows[0]?.id ?? 0 }, 9), {
      ...{ rows: rows.slice(1), lost: 0, loss: undefined },
    });
    const limits = { beforeMs: Number.MAX_SAFE_INTEGER, maxBytes: 1e9, held: undefined };
    t.equal(await reopened.trimEvents(limits), 3);
    await reopened.checkpoint();
    t.equal(await countIn(t, path, "events"), 0, "the row that cannot be read is removed");
    t.same([...problems], ["Could not read events, so they are left out of the feed"]);
  },
);

t.test(
  "the removal of old events lets other work run, and stops when its signal is aborted",
  async (t) => {
    const { store: opening } = setUp(t);
    const store = await opening;
    await store.switchFeed(true);
    const rows = 202;
    for (let i = 0; i < rows; i++) {
      await store.append(draftOf({ key: i % 2 === 0 ? "2:g" : "2:h" }));
      await store.checkpoint(); // each event in a row of its own
    }
    const trim = async (beforeMs: number, maxBytes: number, signal?: AbortSignal) =>
      store.trimEvents({ beforeMs, maxBytes, held: undefined, ...(signal && { signal }) });
    const stop = new AbortController();
    setImmediate(() => stop.abort());
    const removed = await trim(Number.MAX_SAFE_INTEGER, 1e9, stop.signal);
    t.ok(removed > 0 && removed < rows, `${removed} of ${rows} events were removed`);
    const bytes = await store.eventBytes();
    t.equal(await trim(0, 0, stop.signal), 0, "an aborted removal removes nothing");
    t.ok(bytes > 0, "the other events are still there");
    t.equal(removed + (await trim(0, 0)), rows, "the next removal removes the other events");
  },
);

t.test("expired access tokens are removed", async (t) => {
  const { path, time, store: opening } = setUp(t);
  const store = await opening;
  const hash = (byte: number) => new Uint8Array(32).fill(byte);
  await store.putAccessToken(hash(1), "admin", time.nowMs + 1000);
  await store.putAccessToken(hash(2), "admin", time.nowMs + 2000);
  time.nowMs += 1000;
  await store.sweep();
  t.equal(await countIn(t, path, "tokens"), 1);
  t.equal(await store.accessTokenOwner(hash(2)), "admin");
});

t.test("login records survive a restart and are removed after their lifetime", async (t) => {
  const { path, time, store: opening } = setUp(t);
  const store = await opening;
  const claim = { label: "l" };
  let sessions = 0;
  const session = (uid: string, flag: DeviceFlag = 0): SessionRecord => ({
    ...{ sessionId: `s${sessions++}`, nodeId: "n1", uid, flag, level: 1 },
    ...{ deviceId: "d", tokenTag: "" },
  });
  /** Returns the order number of the login, or the reason why the login is refused. */
  const enter = async (session: SessionRecord) => {
    const result = await store.login(session, "n1:1", { claim });
    if (result.kind === "unauthorized") throw new Error(result.kind);
    return result.kind === "entered" ? result.order : result.reason;
  };
  const uids = Array.from({ length: 3000 }, (_, at) => `u${at}`);
  const orders = await Promise.all(uids.map((uid) => enter(session(uid))));
  const endedSession = session("u0", 1);
  await enter(endedSession);
  await store.endSession(endedSession, "logged_out");
  await store.close();
  await store.start();
  time.nowMs += 1;
  t.same(await store.sessionsOf(["u0"]), [[]], "sessions do not survive a restart");
  t.equal(await enter(session("u0")), orders[0]);
  t.equal(await enter(session("u0", 1)), "logged_out");
  time.nowMs += LOGIN_TTL_MS - 2;
  await enter(session("late"));
  t.equal(await enter(session("u1")), orders[1]);
  time.nowMs += 2;
  t.not(await enter(session("u2")), orders[2]);
  // Each sweep examines a part of the table.
  for (let round = 0; round < 2; round++) await store.sweep();
  t.equal(await countIn(t, path, "logins"), 3, "the logins of late, u1 and u2 are left");
});

t.test("a row that cannot be read does not keep the sweep from removing other rows", async (t) => {
  const limits = { maxChannelMessages: 5, onError() {} };
  const { path, time, store: opening } = setUp(t, limits);
  const store = await opening;
  const group = (id: string) => ({ key: `2:${id}` as const, channel: { id, type: 2 } as const });
  for (const n of ["1", "2", "3"]) {
    const channel = group(`expired-${n}`);
    await store.append(draftOf({ ...channel, expireS: 10 }));
    for (const type of [STREAM_START, STREAM_END])
      await store.streamEvent(eventOf(type, "", { ...channel, clientMsgNo: `s${n}`, expireS: 10 }));
    await store.createLog(free(`log-${n}`), logDraftOf({ expiresAtMs: time.nowMs + 1000 }));
    await store.appendCommand(commandOf({ recipients: [`u${n}`], expireS: 10 }));
    await store.putAccessToken(Buffer.from(n), "manager", time.nowMs + 10_000);
  }
  for (const n of ["1", "2", "3"])
    for (let i = 0; i < 20; i++) await store.append(draftOf(group(`long-${n}`)));
  await store.close();

  const env = open({ path: join(path, "lmdb"), maxDbs: 48 });
  await env.openDB({ name: "heads" }).put("2:long-1", [99]);
  for (const [name, at] of [
    ["log", 1], // a stream in the first channel
    ["logHeads", 1],
    ["commandCopies", 0],
  ] as const) {
    const table = env.openDB<Buffer, Buffer>({
      ...{ name, keyEncoding: "binary", encoding: "binary" },
    });
    const key = Buffer.from([...table.getKeys({})][at] ?? "");
    const value = Buffer.from(table.get(key) ?? "");
    value[name === "logHeads" ? 1 : 0] = 99; // the version
    await table.put(key, value);
  }
  await env.close();

  const reopened = await openStore(t, path, { clock: () => time.nowMs, ...limits });
  time.nowMs += 10_000_000;
  for (const round of [1, 2]) {
    t.equal(await codeOf(reopened.sweep()), "internal", `sweep ${round} reports the error`);
    await reopened.checkpoint();
    const left = ["expiry", "logHeads", "commands", "commandCopies", "tokens"];
    const counts = await Promise.all(left.map((name) => countIn(t, path, name)));
    // The log of the stream whose message could not be read remains as well.
    t.same(counts, [0, 2, 1, 1, 0], `sweep ${round} leaves only what cannot be read`);
    for (const n of ["2", "3"])
      t.same((await seqsIn(reopened, `2:long-${n}`)).length, 5, `long-${n} is trimmed`);
  }
});
