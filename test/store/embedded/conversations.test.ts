// Conversations of the embedded store: agreement with a plain model over random calls, restarts and crashes; and data of older builds.

import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { open } from "lmdb";
import t, { type Test } from "tap";
import type {
  ChannelRef,
  Conversation,
  ConversationHead,
} from "../../../src/broker/model.ts";
import type { ConversationChange } from "../../../src/broker/ports.ts";
import type { EmbeddedStore } from "../../../src/store/embedded/store.ts";
import { ALL_OF_THEM, newestFirst } from "../../contract/conversation-bench.ts";
import { draftOf, group, PERMANENT } from "../../contract/store-bench.ts";
import { Random } from "../../support/random.ts";
import {
  ConversationModel,
  type HistoryLimits,
  type Seen,
} from "./conversation-model.ts";
import { crashedCopy, openStore, testFolder } from "./folder.ts";

const SEED = Number(process.env.SEED ?? Date.now() % 1_000_000);
const ROUNDS = 4;
const STEPS = 350;
const UIDS = ["a", "b", "c", "d"];
const GROUPS = ["g", "h"];

/** A store and the model beside it, both told the same. */
class Pair {
  readonly model: ConversationModel;
  readonly #t: Test;
  readonly #random: Random;
  readonly #limits: HistoryLimits;
  #path: string;
  #store: EmbeddedStore | undefined;

  constructor(t: Test, random: Random, limits: HistoryLimits) {
    this.#t = t;
    this.#random = random;
    this.#limits = limits;
    this.model = new ConversationModel(limits);
    this.#path = testFolder(t);
  }

  get store(): EmbeddedStore {
    if (this.#store === undefined) throw new Error("not open");
    return this.#store;
  }

  async open(): Promise<void> {
    this.#store = await openStore(this.#t, this.#path, {
      clock: () => this.model.nowMs,
      ...this.#limits,
    });
  }

  async restart(): Promise<void> {
    await this.store.close();
    await this.open();
  }

  /** Goes on with what a kill would have left. */
  async crash(): Promise<void> {
    this.#path = await crashedCopy(this.#t, this.#path);
    await this.restart();
  }

  async send(): Promise<void> {
    const random = this.#random;
    const calls: Promise<unknown>[] = [];
    for (let i = 1 + random.below(4); i > 0; i--) {
      const fromUid = random.pick(UIDS);
      const channel = this.channel();
      const redDot = random.below(4) > 0;
      const expireS = random.below(3) === 0 ? 1 + random.below(60) : 0;
      const header = { noPersist: false, redDot };
      const draft = draftOf({ channel, fromUid, header, expireS });
      calls.push(this.store.append(draft));
      this.model.send(fromUid, channel, { redDot, expireS });
    }
    await Promise.all(calls);
  }

  async stream(): Promise<void> {
    const { key, channel, fromUid } = draftOf({
      channel: this.channel(),
      fromUid: this.#random.pick(UIDS),
    });
    const clientMsgNo = `stream ${this.#random.below(2 ** 48)}`;
    const types = ["___TextMessageStart", "___TextMessageEnd"];
    for (const type of types)
      await this.store.streamEvent({
        ...{ key, channel, fromUid, clientMsgNo, type, data: "" },
        ...{ eventId: undefined, timestampMs: undefined, force: true },
      });
    this.model.send(fromUid, channel, { redDot: true, expireS: 0 });
  }

  async change(): Promise<void> {
    const random = this.#random;
    const uid = random.pick(UIDS);
    const channel = this.channel();
    const change: ConversationChange = random.pick([
      { kind: "read", seq: random.below(60) },
      { kind: "unread", unread: random.below(10) },
      { kind: "unread", unread: random.below(10) },
      { kind: "delete" },
    ]);
    const now = await this.store.changeConversation(uid, channel, change);
    this.model.change(uid, channel, change);
    const expected = this.model.seen(uid, channel);
    this.#isSame(now && seenOf(now), expected, `answer to ${change.kind}`);
  }

  async join(): Promise<void> {
    const id = this.#random.pick(GROUPS);
    const uid = this.#random.pick(UIDS);
    await this.store.addSubscribers(group(id), [uid], PERMANENT);
    this.model.join(id, uid);
  }

  async leave(): Promise<void> {
    const id = this.#random.pick(GROUPS);
    const [uid] = this.model.membersOf(id);
    if (uid === undefined) return;
    await this.store.removeSubscribers(group(id), [uid], "permanent");
    this.model.leave(id, uid);
  }

  /** Of everything there is: what only memory has no sweep reaches. */
  async sweep(): Promise<void> {
    if (this.#limits.maxChannelMessages > 0) await this.store.checkpoint();
    await this.store.sweep();
    this.model.sweep();
  }

  /** Looks while a checkpoint is under way, and sends into it. */
  async lookWhileMoving(): Promise<void> {
    const moving = this.store.checkpoint();
    await this.compare();
    await this.send();
    await this.compare();
    await moving;
  }

  /** One that any user may name. */
  channel(): ChannelRef {
    return this.#random.pick(CHANNELS);
  }

  /** Whether store and model agree on everything; tells where they do not. */
  async compare(): Promise<boolean> {
    for (const uid of UIDS) {
      const heads = newestFirst(await this.store.conversationsOf(uid));
      const expected = this.model.list(uid, CHANNELS);
      if (!this.#isSame(heads.map(seenOf), expected, `list of ${uid}`))
        return false;
      const channels = heads.map(({ channel }) => channel);
      const { conversations } = await this.store.readConversations(
        ...([uid, channels, ALL_OF_THEM] as const),
      );
      const whole = conversations.map(headOf);
      if (!this.#isSame(whole, heads, `messages of ${uid}`)) return false;
      for (const channel of CHANNELS) {
        const one = await this.store.conversation(uid, channel);
        const there = this.model.seen(uid, channel);
        const what = `${uid} in ${channel.type} ${channel.id}`;
        if (!this.#isSame(one && seenOf(one), there, what)) return false;
      }
    }
    return true;
  }

  /** An assertion only where they differ: there are tens of thousands of questions. */
  #isSame(found: unknown, expected: unknown, what: string): boolean {
    if (isDeepStrictEqual(found, expected)) return true;
    return this.#t.same(found, expected, what);
  }
}

const CHANNELS: readonly ChannelRef[] = [
  ...GROUPS.map((id): ChannelRef => ({ id, type: 2 })),
  ...UIDS.map((id): ChannelRef => ({ id, type: 1 })),
];

function seenOf(conversation: Conversation | ConversationHead): Seen {
  const { last, ...rest } = conversation;
  return { ...rest, lastSeq: last?.messageSeq };
}

/** A conversation as a list without content has it. */
function headOf({ last, ...rest }: Conversation): object {
  if (last === undefined) return rest;
  const { messageId, messageSeq, clientMsgNo, timestampMs } = last;
  return { ...rest, last: { messageId, messageSeq, clientMsgNo, timestampMs } };
}

for (let round = 0; round < ROUNDS; round++) {
  const seed = SEED + round;
  t.test(`random calls agree with a plain model (SEED=${seed})`, async (t) => {
    const random = new Random(seed);
    const retentionS = round % 2 === 0 ? 0 : 90;
    const maxChannelMessages = round < ROUNDS / 2 ? 0 : 7;
    const pair = new Pair(t, random, { retentionS, maxChannelMessages });
    await pair.open();
    for (const id of GROUPS) {
      await pair.store.createChannel(group(id), []);
      pair.model.create(id);
    }
    const steps: readonly (readonly [
      weight: number,
      () => Promise<unknown>,
    ])[] = [
      [30, () => pair.send()],
      [3, () => pair.stream()],
      [30, () => pair.change()],
      [8, () => pair.join()],
      [4, () => pair.leave()],
      [12, () => pair.store.checkpoint()],
      [6, () => pair.sweep()],
      [2, () => pair.restart()],
      [2, () => pair.crash()],
      [10, async () => pair.model.pass(random.below(15_000))],
    ];
    const dice = steps.flatMap(([weight, step]) =>
      Array.from({ length: weight }, () => step),
    );
    let step = 0;
    do await random.pick(dice)();
    while ((await pair.compare()) && ++step < STEPS);
    t.equal(step, STEPS, "agreed through all steps");
  });
}

t.test("personal channels of an older build's data are found", async (t) => {
  const path = testFolder(t);
  const before = await openStore(t, path);
  for (let i = 0; i < 1500; i++)
    void before.append(
      draftOf({ channel: { id: `peer-${i}`, type: 1 }, fromUid: "a" }),
    );
  await before.append(draftOf({ channel: { id: "g", type: 2 } }));
  await before.close();
  const env = open({ path: join(path, "lmdb"), maxDbs: 48 });
  await env.openDB({ name: "peers" }).clearAsync();
  await env.openDB({ name: "meta" }).remove("peersComplete");
  await env.close();
  const store = await openStore(t, path);
  t.equal((await store.conversationsOf("a")).length, 1500);
  t.same(
    (await store.conversationsOf("peer-7")).map((c) => c.channel),
    [{ id: "a", type: 1 }],
  );
  t.same(await store.conversationsOf("g"), []);
});

t.test("a position leaves with the membership", async (t) => {
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
