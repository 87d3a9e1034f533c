// The contract of broker/ports.ts's Store, run by every driver. A driver hands in how to make one;
// each test gets its own, empty.

import type { Test } from "tap";
import type { Store } from "../../src/broker/ports.ts";
import { ALL, Bench, codeOf, draftOf, type Given, group, type StoreDriver } from "./store-bench.ts";
import { channels, facts } from "./store-channels.ts";
import { conversations } from "./store-conversations.ts";
import { history, time } from "./store-history.ts";
import { commandOf, inbox, inboxTime } from "./store-inbox.ts";
import { limits, limitsOfStreams } from "./store-limits.ts";
import { members } from "./store-members.ts";
import { appending, retries } from "./store-messages.ts";
import { permissions } from "./store-permissions.ts";
import { positions } from "./store-positions.ts";
import { streamReads } from "./store-stream-reads.ts";
import { streamEnds, streamRetries, streamStates } from "./store-streams.ts";
import { unread } from "./store-unread.ts";

export function storeContract(t: Test, driver: StoreDriver): void {
  const given = async (t: Test): Promise<Bench> => {
    const bench = new Bench(await driver.place(t));
    await bench.store.start();
    t.teardown(() => bench.store.close());
    return bench;
  };
  t.test(`${driver.name}: life cycle`, (t) => lifeCycle(t, driver));
  t.test(`${driver.name}: users`, (t) => users(t, given));
  t.test(`${driver.name}: channels`, (t) => channels(t, given));
  t.test(`${driver.name}: members`, (t) => members(t, given));
  t.test(`${driver.name}: facts`, (t) => facts(t, given));
  t.test(`${driver.name}: permissions`, (t) => permissions(t, given));
  t.test(`${driver.name}: appending`, (t) => appending(t, given));
  t.test(`${driver.name}: retries`, (t) => retries(t, given));
  t.test(`${driver.name}: history`, (t) => history(t, given));
  t.test(`${driver.name}: inbox`, (t) => inbox(t, given));
  t.test(`${driver.name}: streams, states`, (t) => streamStates(t, given));
  t.test(`${driver.name}: streams, reads`, (t) => streamReads(t, given));
  t.test(`${driver.name}: streams, retries`, (t) => streamRetries(t, given));
  if (driver.supportsClock) t.test(`${driver.name}: streams, ends`, (t) => streamEnds(t, given));
  t.test(`${driver.name}: conversations`, (t) => conversations(t, given));
  t.test(`${driver.name}: unread`, (t) => unread(t, given));
  t.test(`${driver.name}: positions`, (t) => positions(t, given));
  t.test(`${driver.name}: limits`, (t) => limits(t, given));
  t.test(`${driver.name}: system accounts`, (t) => systemAccounts(t, given));
  t.test(`${driver.name}: managers`, (t) => managers(t, given));
  if (!driver.supportsClock) return;
  t.test(`${driver.name}: time`, (t) => time(t, given));
  t.test(`${driver.name}: limits and streams`, (t) => limitsOfStreams(t, given));
  t.test(`${driver.name}: time and inboxes`, (t) => inboxTime(t, given));
}

async function lifeCycle(t: Test, driver: StoreDriver): Promise<void> {
  const calls = (store: Store): Promise<unknown>[] => [
    store.append(draftOf()),
    store.readMessages("2:g", ALL),
    store.headSeq("2:g"),
    store.members(group("g")),
    store.appendCommand(commandOf()),
    store.readInbox("alice", 0, { limit: 1, maxBytes: 1 }),
    store.acknowledgeCommands("alice", [1]),
    store.conversationsOf("alice"),
    store.readConversations("alice", [], { limit: 1, maxBytes: 1 }),
    store.changeConversation("alice", group("g"), { kind: "delete" }),
    store.channel(group("g")),
    store.createChannel(group("g"), []),
    Promise.resolve(store.groupFacts("g", "alice")),
    store.device("alice", 0),
    store.accessTokenOwner(new Uint8Array(32)),
    store.ping(),
  ];

  t.test("before start every call is refused as unavailable", async (t) => {
    const { store } = new Bench(await driver.place(t));
    for (const call of calls(store)) t.equal(await codeOf(call), "unavailable");
  });

  t.test("after close every call is refused as unavailable", async (t) => {
    const { store } = new Bench(await driver.place(t));
    await store.start();
    await store.ping();
    await store.close();
    for (const call of calls(store)) t.equal(await codeOf(call), "unavailable");
  });

  t.test("closing finishes what is under way and takes nothing new", async (t) => {
    const bench = new Bench(await driver.place(t));
    const { store } = bench;
    await store.start();
    const sends = Array.from({ length: 50 }, () => store.append(draftOf()));
    const created = store.createChannel(group("late"), ["alice"]);
    const commands = Array.from({ length: 50 }, () => store.appendCommand(commandOf()));
    const closed = store.close();
    t.equal(await codeOf(store.append(draftOf())), "unavailable");
    t.equal((await Promise.all(sends)).at(-1)?.messageSeq, 50);
    t.equal(await created, true);
    t.equal((await Promise.all(commands)).length, 50);
    await closed;
    bench.store = bench.create();
    await bench.store.start();
    t.equal(await bench.store.headSeq("2:g"), 50);
    t.equal((await bench.store.readInbox("bob", 0, ALL)).length, 50);
    t.same(await bench.store.groupsOf("alice"), ["late"]);
    await bench.store.close();
  });

  t.test("close may be called twice, at once or later, and before start", async (t) => {
    const bench = new Bench(await driver.place(t));
    await bench.store.close();
    bench.store = bench.create();
    await bench.store.start();
    await bench.store.append(draftOf());
    await Promise.all([bench.store.close(), bench.store.close()]);
    await bench.store.close();
    bench.store = bench.create();
    await bench.store.start();
    t.equal(await bench.store.headSeq("2:g"), 1);
    await bench.store.close();
  });
}

async function users(t: Test, given: Given): Promise<void> {
  const hash = (byte: number) => new Uint8Array(32).fill(byte);

  t.test("a device is given back as stored, also after a restart", async (t) => {
    const bench = await given(t);
    const device = {
      uid: "alice",
      flag: 1,
      level: 1,
      tokenHash: hash(1),
    } as const;
    t.equal(await bench.store.device("alice", 1), undefined);
    t.equal(await bench.store.putDevice(device), undefined);
    t.same(await bench.store.device("alice", 1), device);
    t.equal(await bench.store.device("alice", 0), undefined);
    t.equal(await bench.store.device("alic", 1), undefined);
    await bench.reopen();
    t.same(await bench.store.device("alice", 1), device);
  });

  t.test("of replacements at once each returns the one before it", async (t) => {
    const { store } = await given(t);
    const olds = await Promise.all(
      Array.from({ length: 20 }, (_, i) =>
        store.putDevice({ uid: "a", flag: 0, level: 0, tokenHash: hash(i) }),
      ),
    );
    const last = await store.device("a", 0);
    const seen = [...olds, last].flatMap((d) => (d ? [d.tokenHash[0]] : []));
    t.equal(seen.length, 20);
    t.equal(new Set(seen).size, 20, "no replacement was lost");
  });

  t.test("an empty token hash is kept as empty", async (t) => {
    const { store } = await given(t);
    const device = {
      uid: "a",
      flag: 2,
      level: 0,
      tokenHash: new Uint8Array(0),
    } as const;
    await store.putDevice(device);
    t.same(await store.device("a", 2), device);
  });
}

async function systemAccounts(t: Test, given: Given): Promise<void> {
  t.test("system accounts are added and removed", async (t) => {
    const bench = await given(t);
    const uids = async () => [...(await bench.store.systemUids())].sort();
    t.same(await uids(), []);
    await bench.store.changeSystemUids("add", ["bot", "名", "a b"]);
    await bench.store.changeSystemUids("add", ["bot", "help"]);
    await bench.store.changeSystemUids("add", []);
    t.same(await uids(), ["a b", "bot", "help", "名"].sort());
    await bench.store.changeSystemUids("remove", ["bot", "unknown"]);
    t.same(await uids(), ["a b", "help", "名"].sort());
    await bench.reopen();
    t.same(await uids(), ["a b", "help", "名"].sort());
    await bench.store.changeSystemUids("remove", await uids());
    t.same(await uids(), []);
  });
}

async function managers(t: Test, given: Given): Promise<void> {
  t.test("a password is stored once", async (t) => {
    const bench = await given(t);
    const put = (hash: string) => bench.store.putPasswordOnce("admin", { passwordHash: hash });
    const answers = await Promise.all([put("h1"), put("h2"), put("h3")]);
    t.equal(new Set(answers.map((a) => a.passwordHash)).size, 1);
    await bench.reopen();
    t.same(await put("h4"), answers[0]);
  });

  t.test("an access token has its owner until it is removed", async (t) => {
    const bench = await given(t);
    const hash = new Uint8Array(32).fill(7);
    const later = bench.nowMs + 86_400_000 * 365 * 50;
    t.equal(await bench.store.accessTokenOwner(hash), undefined);
    const owner = `tag\n${"名\n".repeat(64)}`;
    await bench.store.putAccessToken(hash, owner, later);
    t.equal(await bench.store.accessTokenOwner(hash), owner);
    await bench.reopen();
    t.equal(await bench.store.accessTokenOwner(hash), owner);
    await bench.store.removeAccessToken(hash);
    await bench.store.removeAccessToken(hash);
    t.equal(await bench.store.accessTokenOwner(hash), undefined);
  });
}
