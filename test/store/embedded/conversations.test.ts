// Conversations of the embedded store: random calls, restarts and crashes give the same results as
// a plain model, and data of older builds is read.

import * as fs from "node:fs";
import { join } from "node:path";
import { open } from "lmdb";
import type { Test } from "tap";
import { messageTimeMs } from "../../../src/broker/model.ts";
import type { EmbeddedStore } from "../../../src/store/embedded/store.ts";
import { ConversationModel, type HistoryLimits } from "../../contract/conversation-model.ts";
import { ConversationPair } from "../../contract/conversation-pair.ts";
import { draftOf, group } from "../../contract/store-fixture.ts";
import { conversationsOf } from "../../support/conversation-list.ts";
import { Random } from "../../support/random.ts";
import { t } from "../../support/suite.ts";
import { volume } from "../../support/volume.ts";
import { crashedCopy, damageRow, openStore, testFolder } from "./folder.ts";

const SEED = Number(process.env.SEED ?? Date.now() % 1_000_000);
const ROUNDS = 4;
const STEPS = volume(350, "JINDOU_TEST_STEPS", 75);

/** A store that restarts and crashes, and the model that it is compared with. */
class Pair {
  readonly both: ConversationPair;
  readonly #t: Test;
  readonly #model: ConversationModel;
  readonly #limits: HistoryLimits;
  #path: string;
  #store: EmbeddedStore | undefined;

  constructor(t: Test, random: Random, limits: HistoryLimits) {
    this.#t = t;
    this.#limits = limits;
    const model = new ConversationModel(limits);
    this.#model = model;
    this.both = new ConversationPair(t, {
      ...{ random, model, store: () => this.store },
    });
    this.#path = testFolder(t);
  }

  get store(): EmbeddedStore {
    if (this.#store === undefined) throw new Error("the store is not open");
    return this.#store;
  }

  async open(): Promise<void> {
    this.#store = await openStore(this.#t, this.#path, {
      clock: () => this.#model.nowMs,
      ...this.#limits,
    });
  }

  async restart(): Promise<void> {
    await this.store.close();
    await this.open();
  }

  /** Continues with the state that a kill would leave. */
  async crash(): Promise<void> {
    this.#path = await crashedCopy(this.#t, this.#path);
    await this.restart();
  }

  /**
   * Runs a sweep after a checkpoint, because a sweep does not reach messages that are only in
   * memory.
   */
  async sweep(): Promise<void> {
    if (this.#limits.maxChannelMessages > 0) await this.store.checkpoint();
    await this.store.sweep();
    this.#model.sweep();
  }

  /** Compares and sends while a checkpoint is running. */
  async compareDuringCheckpoint(): Promise<void> {
    const checkpoint = this.store.checkpoint();
    await this.both.compare();
    await this.both.send();
    await this.both.compare();
    await checkpoint;
  }
}

for (let round = 0; round < ROUNDS; round++) {
  const seed = SEED + round;
  t.test(
    `the store and a plain model return the same conversations after random calls (SEED=${seed})`,
    async (t) => {
      const random = new Random(seed);
      const retentionS = round % 2 === 0 ? 0 : 90;
      const maxChannelMessages = round < ROUNDS / 2 ? 0 : 7;
      const pair = new Pair(t, random, { retentionS, maxChannelMessages });
      await pair.open();
      await pair.both.run(STEPS, [
        [12, () => pair.store.checkpoint()],
        [6, () => pair.sweep()],
        [2, () => pair.restart()],
        [2, () => pair.crash()],
        [4, () => pair.compareDuringCheckpoint()],
      ]);
    },
  );
}

t.test("personal channels in the data of an older build are listed", async (t) => {
  const path = testFolder(t);
  const before = await openStore(t, path);
  for (let i = 0; i < 1500; i++)
    void before.append(draftOf({ channel: { id: `peer-${i}`, type: 1 }, fromUid: "a" }));
  await before.append(draftOf({ channel: { id: "g", type: 2 } }));
  await before.close();
  const env = open({ path: join(path, "lmdb"), maxDbs: 48 });
  await env.openDB({ name: "peers" }).clearAsync();
  await env.openDB({ name: "meta" }).remove("peersComplete");
  await env.close();
  const store = await openStore(t, path);
  t.equal((await conversationsOf(store, "a")).length, 1500);
  t.same(
    (await conversationsOf(store, "peer-7")).map((c) => c.channel),
    [{ id: "a", type: 1 }],
  );
  t.same(await conversationsOf(store, "g"), []);
});

t.test("each personal channel is listed once, whether or not it is in the database", async (t) => {
  const store = await openStore(t, testFolder(t));
  const talk = (from: number, to: number) =>
    Promise.all(
      Array.from({ length: to - from }, (_, i) => {
        const channel = { id: `peer-${from + i}`, type: 1 } as const;
        return store.append(draftOf({ channel, fromUid: "a" }));
      }),
    );
  const listedIds = async () =>
    new Set((await conversationsOf(store, "a")).map(({ channel }) => channel.id));
  for (const [stored, all] of [
    [0, 1],
    [128, 129],
    [256, 300],
  ] as const) {
    await talk(0, stored);
    await store.checkpoint();
    await talk(Math.max(0, stored - 5), all);
    const { length } = await conversationsOf(store, "a");
    t.equal(length, all, `${stored} of ${all} channels are in the database`);
    t.equal((await listedIds()).size, all, "no channel is listed twice");
  }
});

t.test(
  "if a conversation list lacks a message that is not on the disk yet, the list reports a time no later than the message",
  async (t) => {
    const time = { nowMs: Date.UTC(2026, 0, 1) };
    let release: (() => void) | undefined;
    let holds = false;
    const store = await openStore(t, testFolder(t), {
      ...{ durability: "disk", clock: () => time.nowMs++ },
      files: {
        ...fs,
        fdatasync(fd, done) {
          const sync = () => fs.fdatasync(fd, done);
          if (holds) release = sync;
          else sync();
        },
      },
    });
    const everything = { sinceMs: 0, count: 9, beforeId: Number.MAX_SAFE_INTEGER };
    const sendTo = (id: string) =>
      store.append(draftOf({ channel: { id, type: 1 }, fromUid: "a" }));
    await sendTo("read");
    const before = await store.newestConversations("a", everything);
    t.equal(before.pendingMs, undefined);
    holds = true;
    const sent = sendTo("unsynced");
    while (release === undefined) await new Promise(setImmediate);
    const channel = { id: "read", type: 1 } as const;
    await store.changeConversation("a", channel, { kind: "unread", unread: 1 });
    const list = await store.newestConversations("a", everything);
    release();
    const sentMs = messageTimeMs((await sent).messageId);
    t.match(list.heads, [{ channel }], "the list lacks the message");
    t.ok(list.newestChangeMs > sentMs, "the list has a later change");
    t.ok((list.pendingMs ?? Number.POSITIVE_INFINITY) <= sentMs);
  },
);

t.test("a message that cannot be read does not hide a conversation", async (t) => {
  const path = testFolder(t);
  const problems = new Set<string>();
  const onError = (_: Error, what: string) => void problems.add(what);
  const store = await openStore(t, path);
  const payload = new Uint8Array(9000); // a row has room for one message
  const sendTo = (id: string) =>
    store.append(draftOf({ channel: { id, type: 1 }, fromUid: "a", payload }));
  for (const id of ["b", "b", "c"]) await sendTo(id);
  await store.close();
  await damageRow(path, "log", { at: 1 }); // the second message from a to b
  const reopened = await openStore(t, path, { onError });
  const seqsOf = async (uid: string) =>
    (await conversationsOf(reopened, uid)).map(({ last, unread }) => [last.messageSeq, unread]);
  t.same(await seqsOf("a"), [
    [1, 0],
    [1, 0],
  ]);
  t.same(await seqsOf("b"), [[1, 2]]);
  const page = { limit: 9, maxBytes: 1e9 };
  const channel = { id: "a", type: 1 } as const;
  const { conversations } = await reopened.readConversations("b", [channel], page);
  t.match(conversations, [{ last: { messageSeq: 1 }, unread: 2 }]);
  const read = { kind: "read", seq: 1 } as const;
  t.match(await reopened.changeConversation("b", channel, read), { readSeq: 1 });
  t.same([...problems], ["Could not read a stored message, so it is left out of conversations"]);
});

t.test("a read position is removed when its user is removed from the group", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path);
  await store.createChannel(group("g"), ["a", "b"]);
  await store.append(draftOf());
  for (const uid of ["a", "b"])
    await store.changeConversation(uid, group("g"), { kind: "read", seq: 1 });
  await store.removeSubscribers(group("g"), ["a"], "permanent");
  await store.checkpoint();
  const copy = await crashedCopy(t, path);
  const env = open({ path: join(copy, "lmdb"), maxDbs: 48 });
  const keys = [...env.openDB({ name: "positions" }).getKeys()];
  await env.close();
  t.same(keys, [["b", "2:g"]]);
});
