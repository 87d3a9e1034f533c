// Contract of `Store` in `broker/ports.ts`, which every driver runs. Each test has an empty store
// of its own.

import type { Test } from "tap";
import { STREAM_CONTENT, STREAM_START } from "../../src/broker/model.ts";
import type { Store } from "../../src/broker/ports.ts";
import { IS_FULL } from "../support/volume.ts";
import { channelLogs, channelLogTimes } from "./store-channel-logs.ts";
import { channels, facts } from "./store-channels.ts";
import { conversations } from "./store-conversations.ts";
import { events } from "./store-events.ts";
import {
  ALL,
  codeOf,
  draftOf,
  type FixtureFactory,
  group,
  type StoreDriver,
  StoreFixture,
} from "./store-fixture.ts";
import { history, time } from "./store-history.ts";
import { imports, importTimes } from "./store-imports.ts";
import { commandOf, inbox, inboxTime } from "./store-inbox.ts";
import { joins } from "./store-joins.ts";
import { limits, limitsOfStreams } from "./store-limits.ts";
import { members } from "./store-members.ts";
import { appending, retries } from "./store-messages.ts";
import { online } from "./store-online.ts";
import { permissions } from "./store-permissions.ts";
import { positions } from "./store-positions.ts";
import { push } from "./store-push.ts";
import { eventOf, snapshotOf } from "./store-stream-fixture.ts";
import { streamReads } from "./store-stream-reads.ts";
import { streamEnds, streamRetries, streamStates } from "./store-streams.ts";
import { unread } from "./store-unread.ts";
import { webhooks } from "./store-webhooks.ts";

/** One part of the contract. */
interface Part {
  readonly title: string;
  readonly run: (t: Test, createFixture: FixtureFactory) => Promise<void>;
  /** True if the part needs a store that reads the time from `StoreOptions.clock`. */
  readonly needsClock?: true;
}

const PARTS = {
  users: { title: "devices of users are stored", run: users },
  channels: { title: "channels are created and changed", run: channels },
  members: { title: "members are added and removed", run: members },
  facts: { title: "the store returns the facts that a send depends on", run: facts },
  permissions: { title: "a send without permission is refused", run: permissions },
  appending: { title: "messages are numbered, stored and published", run: appending },
  events: { title: "the event feed has an event for each change", run: events },
  online: { title: "the event feed reports when users go online and offline", run: online },
  retries: { title: "a retried message is stored once", run: retries },
  history: { title: "stored messages can be read", run: history },
  inbox: { title: "commands stay in the inbox until they are acknowledged", run: inbox },
  joins: { title: "a session joins with the state of its user", run: joins },
  streamStates: {
    title: "every stream call has the specified outcome in every state",
    run: streamStates,
  },
  streamReads: {
    title: "streams can be read while they run and after they end",
    run: streamReads,
  },
  streamRetries: { title: "a retried stream event has no effect", run: streamRetries },
  channelLogs: {
    title: "streams are written with the Durable Streams protocol",
    run: channelLogs,
  },
  streamEnds: {
    title: "silent streams are interrupted, and active streams survive a restart",
    ...{ run: streamEnds, needsClock: true },
  },
  conversations: { title: "conversations are listed and read", run: conversations },
  unread: {
    title: "read positions and unread counts are correct in every case",
    run: unread,
  },
  positions: {
    title: "read positions, join seqs and change times of conversations are stored",
    run: positions,
  },
  limits: { title: "a channel keeps at most `maxChannelMessages` messages", run: limits },
  imports: { title: "imported messages are stored with their seqs", run: imports },
  systemAccounts: { title: "system accounts are stored", run: systemAccounts },
  webhooks: { title: "webhooks are stored", run: webhooks },
  push: { title: "the cursors of push decisions are stored", run: push },
  signingKeys: { title: "signing keys are stored", run: signingKeys },
  managers: { title: "passwords and access tokens of managers are stored", run: managers },
  time: {
    title: "messages, dedupe records and access tokens expire",
    ...{ run: time, needsClock: true },
  },
  importTimes: {
    title: "imported messages expire, and their retries are recognised",
    ...{ run: importTimes, needsClock: true },
  },
  limitsOfStreams: {
    title: "a stream that has ended is removed with its message",
    ...{ run: limitsOfStreams, needsClock: true },
  },
  channelLogTimes: {
    title: "streams of the Durable Streams protocol end and are removed",
    ...{ run: channelLogTimes, needsClock: true },
  },
  inboxTime: { title: "commands expire in the inbox", run: inboxTime, needsClock: true },
} as const satisfies Readonly<Record<string, Part>>;

export type StorePart = keyof typeof PARTS;

/** Parts to run if another file runs all parts on the same store with different settings. */
interface Choice {
  readonly only?: readonly StorePart[];
  readonly except?: readonly StorePart[];
}

/**
 * Runs the contract against the driver. `choice` selects the parts whose result the settings of the
 * driver can change. With JINDOU_TEST_VOLUME=full, all parts run in any case.
 */
export function storeContract(t: Test, driver: StoreDriver, choice: Choice = {}): void {
  const createFixture = async (t: Test): Promise<StoreFixture> => {
    const fixture = new StoreFixture(await driver.createLocation(t));
    await fixture.store.start();
    t.teardown(() => fixture.store.close());
    return fixture;
  };
  t.test(`${driver.name}: the store rejects calls before start and after close`, (t) =>
    lifeCycle(t, driver),
  );
  const names = Object.keys(PARTS) as StorePart[]; // the keys of the literal
  const { only = names, except = [] } = IS_FULL ? {} : choice;
  for (const name of names) {
    const part: Part = PARTS[name];
    if (!only.includes(name) || except.includes(name)) continue;
    if (part.needsClock && !driver.supportsClock) continue;
    t.test(`${driver.name}: ${part.title}`, (t) => part.run(t, createFixture));
  }
}

async function lifeCycle(t: Test, driver: StoreDriver): Promise<void> {
  const calls = (store: Store): Promise<unknown>[] => [
    store.append(draftOf()),
    store.readMessages("2:g", ALL),
    store.headSeq("2:g"),
    store.members(group("g")),
    store.appendCommand(commandOf()),
    store.streamEvent(eventOf(STREAM_START)),
    store.readInbox("alice", 0, { limit: 1, maxBytes: 1 }),
    store.acknowledgeCommands("alice", [1]),
    store.newestConversations("alice", { sinceMs: 0, count: 1, beforeId: 1 }),
    store.readConversations("alice", [], { limit: 1, maxBytes: 1 }),
    store.changeConversation("alice", group("g"), { kind: "delete" }),
    store.channel(group("g")),
    store.createChannel(group("g"), []),
    Promise.resolve(store.groupFacts("g", "alice")),
    store.device("alice", 0),
    store.accessTokenOwner(new Uint8Array(32)),
    store.ping(),
  ];

  t.test("every call before start is rejected with unavailable", async (t) => {
    const { store } = new StoreFixture(await driver.createLocation(t));
    for (const call of calls(store)) t.equal(await codeOf(call), "unavailable");
  });

  t.test("every call after close is rejected with unavailable", async (t) => {
    const { store } = new StoreFixture(await driver.createLocation(t));
    await store.start();
    await store.ping();
    await store.close();
    for (const call of calls(store)) t.equal(await codeOf(call), "unavailable");
  });

  t.test("closing a store completes the calls in progress and rejects new calls", async (t) => {
    const fixture = new StoreFixture(await driver.createLocation(t));
    const { store } = fixture;
    await store.start();
    const sends = Array.from({ length: 50 }, () => store.append(draftOf()));
    const created = store.createChannel(group("late"), ["alice"]);
    const commands = Array.from({ length: 50 }, () => store.appendCommand(commandOf()));
    const events = [STREAM_START, ...Array<string>(20).fill(STREAM_CONTENT)].map((type) =>
      store.streamEvent(eventOf(type, "x", { channel: group("streams") })),
    );
    const closed = store.close();
    t.equal(await codeOf(store.append(draftOf())), "unavailable", "a call after close is rejected");
    t.equal((await Promise.all(sends)).at(-1)?.messageSeq, 50, "messages in progress are stored");
    t.equal(await created, true, "a channel in progress is created");
    t.equal((await Promise.all(commands)).length, 50, "commands in progress are stored");
    const verdicts = (await Promise.all(events)).map(({ verdict }) => verdict);
    t.same(new Set(verdicts), new Set(["done"]), "events in progress are stored");
    await closed;
    fixture.store = fixture.create();
    await fixture.store.start();
    t.equal(await fixture.store.headSeq("2:g"), 50);
    t.equal((await fixture.store.readInbox("bob", 0, ALL)).length, 50);
    const { text } = await snapshotOf(fixture, "s", "2:streams");
    t.equal(text, "x".repeat(20));
    t.same(await fixture.store.groupsOf("alice"), ["late"]);
    await fixture.store.close();
  });

  t.test("close may be called before start, and several times", async (t) => {
    const fixture = new StoreFixture(await driver.createLocation(t));
    await fixture.store.close();
    fixture.store = fixture.create();
    await fixture.store.start();
    await fixture.store.append(draftOf());
    await Promise.all([fixture.store.close(), fixture.store.close()]);
    await fixture.store.close();
    fixture.store = fixture.create();
    await fixture.store.start();
    t.equal(await fixture.store.headSeq("2:g"), 1);
    await fixture.store.close();
  });
}

async function users(t: Test, createFixture: FixtureFactory): Promise<void> {
  const hash = (byte: number) => new Uint8Array(32).fill(byte);

  t.test("a device is returned as stored, even after a restart", async (t) => {
    const fixture = await createFixture(t);
    const device = {
      uid: "alice",
      flag: 1,
      level: 1,
      tokenHash: hash(1),
    } as const;
    t.equal(await fixture.store.device("alice", 1), undefined);
    t.equal(await fixture.store.putDevice(device), undefined);
    t.same(await fixture.store.device("alice", 1), device);
    t.equal(await fixture.store.device("alice", 0), undefined);
    t.equal(await fixture.store.device("alic", 1), undefined);
    await fixture.reopen();
    t.same(await fixture.store.device("alice", 1), device);
  });

  t.test(
    "each of several concurrent replacements returns the device that it replaced",
    async (t) => {
      const { store } = await createFixture(t);
      const replaced = await Promise.all(
        Array.from({ length: 20 }, (_, i) =>
          store.putDevice({ uid: "a", flag: 0, level: 0, tokenHash: hash(i) }),
        ),
      );
      const last = await store.device("a", 0);
      const hashes = [...replaced, last].flatMap((device) => (device ? [device.tokenHash[0]] : []));
      t.equal(hashes.length, 20);
      t.equal(new Set(hashes).size, 20, "no replacement was lost");
    },
  );

  t.test("a device without a token is stored with an empty token hash", async (t) => {
    const { store } = await createFixture(t);
    const device = {
      uid: "a",
      flag: 2,
      level: 0,
      tokenHash: new Uint8Array(0),
    } as const;
    await store.putDevice(device);
    const { revokedS = 0, ...stored } = (await store.device("a", 2)) ?? {};
    t.same(stored, device);
    t.ok(revokedS > 0, "the time of the logout is stored in seconds");
  });

  t.test("the keys of an identity provider are stored until other keys replace them", async (t) => {
    const { store } = await createFixture(t);
    t.equal(await store.keySet(), undefined);
    const set = {
      url: "https://id.example/certs",
      text: '{"keys":[]}',
      readAtMs: 1_800_000_000_123,
    };
    await store.putKeySet(set);
    t.same(await store.keySet(), set);
    const next = { ...set, text: "é\n", readAtMs: set.readAtMs + 1 };
    await store.putKeySet(next);
    t.same(await store.keySet(), next);
  });
}

async function systemAccounts(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("system accounts can be added and removed, and survive a restart", async (t) => {
    const fixture = await createFixture(t);
    const uids = async () => [...(await fixture.store.systemUids())].sort();
    t.same(await uids(), []);
    await fixture.store.changeSystemUids("add", ["bot", "名", "a b"]);
    await fixture.store.changeSystemUids("add", ["bot", "help"]);
    await fixture.store.changeSystemUids("add", []);
    t.same(await uids(), ["a b", "bot", "help", "名"].sort());
    await fixture.store.changeSystemUids("remove", ["bot", "unknown"]);
    t.same(await uids(), ["a b", "help", "名"].sort());
    await fixture.reopen();
    t.same(await uids(), ["a b", "help", "名"].sort());
    await fixture.store.changeSystemUids("remove", await uids());
    t.same(await uids(), []);
  });
}

async function signingKeys(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("only the first of several signing keys with the same number is stored", async (t) => {
    const fixture = await createFixture(t);
    const keyOf = (number: number, byte: number) => ({
      ...{ number, secret: new Uint8Array(32).fill(byte), createdAtMs: 1000 + byte },
    });
    const put = (number: number, byte: number) =>
      fixture.store.putSigningKeyOnce(keyOf(number, byte));
    t.same(await fixture.store.signingKeys(), []);
    const [first, second] = await Promise.all([put(1, 7), put(1, 10)]);
    t.same(first, second, "both callers get the stored key");
    for (let number = 2; number <= 10; number++) await put(number, number);
    await fixture.reopen();
    const stored = await fixture.store.signingKeys();
    t.same(stored[0], first);
    t.same(
      stored.slice(1),
      Array.from({ length: 9 }, (_, at) => keyOf(at + 2, at + 2)),
    );
    await fixture.store.removeSigningKey(1);
    await fixture.store.removeSigningKey(1);
    t.same((await fixture.store.signingKeys()).map(({ number }) => number)[0], 2);
  });
}

async function managers(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test(
    "`putPasswordOnce` stores only the first password of a manager, and later calls return that password",
    async (t) => {
      const fixture = await createFixture(t);
      const put = (hash: string) => fixture.store.putPasswordOnce("admin", { passwordHash: hash });
      const results = await Promise.all([put("h1"), put("h2"), put("h3")]);
      t.equal(new Set(results.map((result) => result.passwordHash)).size, 1);
      await fixture.reopen();
      t.same(await put("h4"), results[0]);
    },
  );

  t.test("the owner of an access token is returned until the token is removed", async (t) => {
    const fixture = await createFixture(t);
    const hash = new Uint8Array(32).fill(7);
    const later = fixture.nowMs + 86_400_000 * 365 * 50;
    t.equal(await fixture.store.accessTokenOwner(hash), undefined);
    const owner = `tag\n${"名\n".repeat(64)}`;
    await fixture.store.putAccessToken(hash, owner, later);
    t.equal(await fixture.store.accessTokenOwner(hash), owner);
    await fixture.reopen();
    t.equal(await fixture.store.accessTokenOwner(hash), owner);
    await fixture.store.removeAccessToken(hash);
    await fixture.store.removeAccessToken(hash);
    t.equal(await fixture.store.accessTokenOwner(hash), undefined);
  });
}
