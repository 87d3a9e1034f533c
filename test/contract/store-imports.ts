// Store contract: imported messages with their seqs, times and source ids, and messages sent
// afterwards [decisions: Imported messages].

import type { Test } from "tap";
import { type ChannelRef, channelKey, type Message } from "../../src/broker/model.ts";
import type { ImportedMessage, ImportVerdict } from "../../src/broker/ports.ts";
import {
  ALL,
  draftOf,
  earlierResult,
  type FixtureFactory,
  group,
  PERMANENT,
  type StoreFixture,
  seqsOf,
} from "./store-fixture.ts";

const G: ChannelRef = { id: "g", type: 2 };
const KEY = "2:g";
const DAY_MS = 86_400_000;
/** Highest id of WuKongIM, which JavaScript cannot store as a number. */
const HIGHEST = 2n ** 64n - 1n;

/** Returns message `seq` of alice in the group g, which was sent `seq` seconds after `sinceMs`. */
function imported(
  seq: number,
  sinceMs: number,
  over: Partial<ImportedMessage> = {},
): ImportedMessage {
  return {
    channel: G,
    fromUid: "alice",
    clientMsgNo: `no-${seq}`,
    messageSeq: seq,
    sourceId: String(HIGHEST - BigInt(seq)),
    timestampMs: sinceMs + seq * 1000,
    expireS: 0,
    passthrough: undefined,
    payload: new TextEncoder().encode(`{"type":1,"content":"${seq}"}`),
    ...over,
  };
}

const counted = (count: number, verdict: ImportVerdict) => new Array(count).fill(verdict);

/**
 * Returns a fixture whose group has the members alice and bob and the imported messages 3, 4, 70
 * and 900, which were sent two days ago.
 */
async function withImport(createFixture: FixtureFactory, t: Test) {
  const fixture = await createFixture(t);
  const { store } = fixture;
  await store.createChannel(group("g"), ["alice"]);
  const sinceMs = fixture.nowMs - 2 * DAY_MS;
  const messages = [3, 4, 70, 900].map((seq) => imported(seq, sinceMs));
  t.same(await store.importMessages(KEY, messages), counted(4, "stored"));
  await store.addSubscribers(G, ["bob"], PERMANENT);
  return { fixture, messages, sinceMs };
}

async function read({ store }: StoreFixture, range: Partial<typeof ALL> = {}): Promise<Message[]> {
  return [...(await store.readMessages(KEY, { ...ALL, ...range })).messages];
}

export async function imports(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("imported messages keep their seqs and fields, and history skips the gaps", async (t) => {
    const { fixture, messages } = await withImport(createFixture, t);
    const { store } = fixture;
    t.same(fixture.messages, [], "nothing is published");
    const stored = await read(fixture);
    t.match(
      stored,
      messages.map(({ messageSeq, sourceId, timestampMs, clientMsgNo }) => ({
        ...{ messageSeq, sourceId, timestampMs, clientMsgNo, fromUid: "alice" },
        header: { redDot: true, noPersist: false },
      })),
    );
    t.same(
      stored.map(({ payload }) => Buffer.from(payload).toString()),
      messages.map(({ payload }) => Buffer.from(payload).toString()),
    );
    const ids = stored.map(({ messageId }) => messageId);
    t.same(
      ids,
      [...ids].sort((a, b) => a - b),
      "ids grow with seqs",
    );
    t.same(seqsOf(await read(fixture, { fromSeq: 5, toSeq: 899 })), [70]);
    t.same(seqsOf(await read(fixture, { reverse: true, limit: 2 })), [900, 70]);
    t.same(seqsOf(await read(fixture, { fromSeq: 71, toSeq: 899, reverse: true })), []);

    const { messageSeq } = await store.append(draftOf());
    t.equal(messageSeq, 901, "the next message follows the newest seq");
    await store.append(draftOf({ expireS: 60 }));
    t.same(seqsOf(await read(fixture, { fromSeq: 70 })), [70, 900, 901, 902]);
    const [, , newest] = stored;
    t.match((await read(fixture, { fromSeq: 901 }))[0], { sourceId: undefined });
    t.ok((await read(fixture, { fromSeq: 901 }))[0]?.messageId ?? 0 > (newest?.messageId ?? 0));

    await fixture.reopen();
    t.same(seqsOf(await read(fixture)), [3, 4, 70, 900, 901, 902], "a restart changes nothing");
    t.equal(await fixture.store.headSeq(KEY), 902);
  });

  t.test(
    "importing a message again changes nothing, and a different message with the same seq is a conflict",
    async (t) => {
      const { fixture, messages, sinceMs } = await withImport(createFixture, t);
      const { store } = fixture;
      t.same(await store.importMessages(KEY, messages), counted(4, "unchanged"));
      const more = [imported(900, sinceMs), imported(901, sinceMs), imported(902, sinceMs)];
      t.same(await store.importMessages(KEY, more), ["unchanged", "stored", "stored"]);
      const changes: Partial<ImportedMessage>[] = [
        { payload: new Uint8Array([1]) },
        { sourceId: "7" },
        { fromUid: "bob" },
        { clientMsgNo: "" },
        { timestampMs: sinceMs + 71_000 },
        { expireS: 9_000_000 },
        { passthrough: { setting: 8, topic: "t" } },
      ];
      for (const change of changes)
        t.same(
          await store.importMessages(KEY, [imported(70, sinceMs, change)]),
          ["conflict"],
          Object.keys(change).join(),
        );
      t.same(await store.importMessages(KEY, [imported(69, sinceMs)]), ["conflict"], "a gap");
      t.same(seqsOf(await read(fixture)), [3, 4, 70, 900, 901, 902]);
    },
  );

  t.test("an imported message never has an earlier time than the message before it", async (t) => {
    const fixture = await createFixture(t);
    const sinceMs = fixture.nowMs - DAY_MS;
    const times = [50_000, 20_000, 60_000, 10_000].map((ms) => sinceMs + ms);
    const messages = times.map((timestampMs, at) => imported(at + 1, 0, { timestampMs }));
    for (const verdict of ["stored", "unchanged"] as const)
      t.same(await fixture.store.importMessages(KEY, messages), counted(4, verdict));
    t.same(
      (await read(fixture)).map(({ timestampMs }) => timestampMs - sinceMs),
      [50_000, 50_000, 60_000, 60_000],
    );
    const [, second] = messages;
    if (second !== undefined)
      t.same(await fixture.store.importMessages(KEY, [second]), ["unchanged"], "alone");
    const late = imported(5, 0, { timestampMs: sinceMs });
    t.same(await fixture.store.importMessages(KEY, [late]), ["stored"]);
    t.equal((await read(fixture)).at(-1)?.timestampMs, sinceMs + 60_000);
  });

  t.test(
    "imported messages count as read until the user's read position is imported",
    async (t) => {
      const { fixture } = await withImport(createFixture, t);
      const { store } = fixture;
      const numbers = async (uid: string) => {
        const { readSeq, unread } = (await store.conversation(uid, G)) ?? {};
        return [readSeq, unread];
      };
      t.same(await numbers("alice"), [900, 0]);
      t.same(await numbers("bob"), [900, 0]);
      t.equal(await store.importPosition("bob", G, { readSeq: 4, deletedSeq: 0 }), true);
      t.equal(await store.importPosition("bob", G, { readSeq: 4, deletedSeq: 0 }), false);
      t.same(await numbers("bob"), [4, 2], "gaps do not count as unread messages");
      t.equal(await store.importPosition("alice", G, { readSeq: 3, deletedSeq: 0 }), true);
      t.same(
        await numbers("alice"),
        [900, 0],
        "all messages up to the user's own newest message count as read",
      );
      t.equal(await store.importPosition("bob", G, { readSeq: 9999, deletedSeq: 70 }), true);
      t.same(await numbers("bob"), [900, 0], "a read position never exceeds the newest seq");
      await store.append(draftOf());
      t.same(await numbers("bob"), [900, 1]);
      t.same(await numbers("alice"), [901, 0]);
      await store.importPosition("bob", G, { readSeq: 3, deletedSeq: 0 });
      const changed = await store.changeConversation("bob", G, { kind: "unread", unread: 2 });
      t.match(changed, { unread: 2, readSeq: 899 });
      const onlyUnread = {
        sinceMs: 0,
        count: 10,
        beforeId: Number.MAX_SAFE_INTEGER,
        onlyUnread: true,
      };
      const listOf = async (uid: string) =>
        (await store.newestConversations(uid, onlyUnread)).heads.map(({ unread }) => unread);
      t.same(await listOf("bob"), [2]);
      t.same(await listOf("alice"), []);
    },
  );

  t.test(
    "a personal channel with imported messages is in the conversation lists of both users",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      const toBob = { channel: { id: "bob", type: 1 } as const };
      const key = channelKey(toBob.channel, "alice");
      const list = async (uid: string) =>
        (await store.newestConversations(uid, { sinceMs: 0, count: 9, beforeId: Infinity })).heads;
      t.same(await list("bob"), []);
      const messages = [2, 5].map((seq) => imported(seq, fixture.nowMs - DAY_MS, toBob));
      await store.importMessages(key, messages);
      for (const uid of ["alice", "bob"])
        t.match(await list(uid), [{ headSeq: 5, unread: 0, last: { messageSeq: 5 } }], uid);
      await store.append(draftOf({ ...toBob, key }));
      t.match(await list("bob"), [{ headSeq: 6, unread: 1 }]);
      await fixture.reopen();
      t.match(await fixture.store.conversation("bob", { id: "alice", type: 1 }), {
        headSeq: 6,
        unread: 1,
      });
    },
  );

  t.test("an imported message is found by its source id until it is removed", async (t) => {
    const { fixture, messages } = await withImport(createFixture, t);
    const find = (at: number) => fixture.store.seqOfSource(KEY, messages[at]?.sourceId ?? "");
    t.equal(await find(0), 3);
    t.equal(await find(3), 900);
    t.equal(await fixture.store.seqOfSource(KEY, "1"), undefined);
    t.equal(await fixture.store.seqOfSource("2:other", messages[0]?.sourceId ?? ""), undefined);
    fixture.maxChannelMessages = 100;
    await fixture.reopen();
    await fixture.store.append(draftOf());
    await fixture.store.sweep();
    t.same(seqsOf(await read(fixture)), [900, 901]);
    t.equal(await find(0), undefined);
    t.equal(await find(2), undefined);
    t.equal(await find(3), 900);
    t.same(
      await fixture.store.importMessages(KEY, messages),
      counted(4, "unchanged"),
      "a removed message is not stored again",
    );
  });

  t.test(
    "the phase of an import and its line counts per kind survive a restart of the store",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      t.same(await store.importState(), { phase: "none", stored: {} });
      t.equal(await store.storedData(), undefined);
      t.equal(await store.changeImportPhase(["none"], "open"), "none");
      t.equal(await store.changeImportPhase(["none"], "opening"), "open");
      await store.countImported({ token: 2, message: 5 });
      await store.countImported({ message: 1 });
      await fixture.reopen();
      t.same(await fixture.store.importState(), {
        phase: "open",
        stored: { token: 2, message: 6 },
      });
    },
  );

  t.test("a store with users, channels or messages is reported as not empty", async (t) => {
    const fill: readonly ((fixture: StoreFixture) => Promise<unknown>)[] = [
      ({ store }) =>
        store.putDevice({ uid: "a", flag: 0, level: 0, tokenHash: new Uint8Array(32) }),
      ({ store }) => store.createChannel(group("g"), []),
      ({ store }) =>
        store.changeList({ id: "a", type: 1 }, "denylist", { kind: "add", uids: ["b"] }),
      ({ store }) => store.append(draftOf()),
      ({ store }) => store.changeSystemUids("add", ["bot"]),
    ];
    for (const step of fill) {
      const fixture = await createFixture(t);
      await step(fixture);
      t.type(await fixture.store.storedData(), "string");
    }
    const { store } = await createFixture(t);
    await store.putPasswordOnce("admin", { passwordHash: "scrypt$1" });
    t.equal(await store.storedData(), undefined, "an account of a manager does not count");
  });
}

export async function importTimes(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("the retention time of an imported message begins at its original time", async (t) => {
    const { fixture, messages, sinceMs } = await withImport(createFixture, t);
    await fixture.store.append(draftOf());
    await fixture.store.importPosition("bob", G, { readSeq: 3, deletedSeq: 0 });
    // The store keeps messages that were sent later than 100 s after `sinceMs`: 900 but not 70.
    fixture.retentionS = 2 * 86_400 - 100;
    await fixture.reopen();
    const { store } = fixture;
    t.same(seqsOf(await read(fixture)), [900, 901], "the message is hidden before the sweep");
    t.match(await store.conversation("bob", G), { unread: 2 });
    await store.sweep();
    t.same(seqsOf(await read(fixture)), [900, 901]);
    t.equal(await store.seqOfSource(KEY, messages[0]?.sourceId ?? ""), undefined);
    t.same(await store.importMessages(KEY, messages), counted(4, "unchanged"));
    t.same(await store.importMessages(KEY, [imported(899, sinceMs)]), ["conflict"]);
    fixture.nowMs += 900_000;
    await store.sweep();
    t.same(seqsOf(await read(fixture)), [901]);
    fixture.nowMs += 2 * DAY_MS;
    await store.sweep();
    t.same(seqsOf(await read(fixture)), []);
    t.match(await store.append(draftOf()), { messageSeq: 902 });
  });

  t.test("a retry of an imported message is recognised within the dedupe window", async (t) => {
    const { fixture, sinceMs } = await withImport(createFixture, t);
    const recent = imported(901, fixture.nowMs - 905_000, { clientMsgNo: "recent" });
    await fixture.store.importMessages(KEY, [recent]);
    const retry = { key: KEY, fromUid: "alice", payload: recent.payload };
    const resend = (clientMsgNo: string) => earlierResult(fixture.store, { ...retry, clientMsgNo });
    t.match(await resend("recent"), { messageSeq: 901, duplicate: true });
    t.equal(await resend("no-900"), undefined, "the message is older than the window");
    await fixture.reopen();
    t.match(await resend("recent"), { messageSeq: 901, duplicate: true });
    fixture.nowMs += DAY_MS;
    t.equal(await resend("recent"), undefined);
    t.ok(sinceMs < fixture.nowMs);
  });

  t.test("an imported message expires at the same time as on its old server", async (t) => {
    const fixture = await createFixture(t);
    const { store } = fixture;
    await store.createChannel(group("g"), ["alice", "bob"]);
    const sinceMs = fixture.nowMs - 100_000;
    const expiring = imported(2, sinceMs, { expireS: 200 });
    const messages = [imported(1, sinceMs, { expireS: 10 }), expiring, imported(5, sinceMs)];
    t.same(await store.importMessages(KEY, messages), counted(3, "stored"));
    t.same(seqsOf(await read(fixture)), [2, 5]);
    await store.importPosition("bob", G, { readSeq: 0, deletedSeq: 0 });
    t.match(await store.conversation("bob", G), { unread: 2 });
    await store.sweep();
    t.same(await store.importMessages(KEY, messages), counted(3, "unchanged"));
    fixture.nowMs += 200_000;
    await store.sweep();
    t.same(seqsOf(await read(fixture)), [5]);
    t.equal(await store.seqOfSource(KEY, expiring.sourceId), undefined);
    t.match(await store.conversation("bob", G), { unread: 1 });
  });
}
