// Conversations on Redis agree with a plain model over random calls, in which time passes, messages expire, are past retention or more than a channel keeps, and are swept,
// users join and leave.

import { isDeepStrictEqual } from "node:util";
import t, { type Test } from "tap";
import type {
  ChannelRef,
  Conversation,
  ConversationHead,
} from "../../../src/broker/model.ts";
import type { ConversationChange } from "../../../src/broker/ports.ts";
import { ALL_OF_THEM, newestFirst } from "../../contract/conversation-bench.ts";
import { draftOf, group, PERMANENT } from "../../contract/store-bench.ts";
import { Random } from "../../support/random.ts";
import { startRedis } from "../../support/redis.ts";
import {
  ConversationModel,
  type Seen,
} from "../embedded/conversation-model.ts";
import { openConversations, type TestStore } from "./conversation-store.ts";

const SEED = Number(process.env.SEED ?? Date.now() % 1_000_000);
const ROUNDS = 4;
const STEPS = 120;
const RETENTION_S = 90;
const KEEPS = 7;
const UIDS = ["a", "b", "c", "d"];
const GROUPS = ["g", "h"];
const CHANNELS: readonly ChannelRef[] = [
  ...GROUPS.map((id): ChannelRef => ({ id, type: 2 })),
  ...UIDS.map((id): ChannelRef => ({ id, type: 1 })),
];

/** A store and the model beside it, both told the same. */
class Pair {
  readonly #t: Test;
  readonly #random: Random;
  readonly #store: TestStore;
  readonly #model: ConversationModel;

  constructor(
    t: Test,
    random: Random,
    both: { readonly store: TestStore; readonly model: ConversationModel },
  ) {
    this.#t = t;
    this.#random = random;
    this.#store = both.store;
    this.#model = both.model;
  }

  async found(): Promise<void> {
    for (const id of GROUPS) {
      await this.#store.createChannel(group(id), []);
      this.#model.create(id);
    }
  }

  async send(): Promise<void> {
    const random = this.#random;
    const calls: Promise<unknown>[] = [];
    for (let i = 1 + random.below(4); i > 0; i--) {
      this.#model.pass(1); // ids of one millisecond are ordered within a channel only
      const fromUid = random.pick(UIDS);
      const channel = random.pick(CHANNELS);
      const redDot = random.below(4) > 0;
      const expireS = random.below(3) === 0 ? 1 + random.below(60) : 0;
      const header = { noPersist: false, redDot };
      const draft = draftOf({ channel, fromUid, header, expireS });
      calls.push(this.#store.append(draft));
      this.#model.send(fromUid, channel, { redDot, expireS });
    }
    await Promise.all(calls);
  }

  async stream(): Promise<void> {
    this.#model.pass(1);
    const { key, channel, fromUid } = draftOf({
      channel: this.#random.pick(CHANNELS),
      fromUid: this.#random.pick(UIDS),
    });
    const clientMsgNo = `stream ${this.#random.below(2 ** 48)}`;
    for (const type of ["___TextMessageStart", "___TextMessageEnd"])
      await this.#store.streamEvent({
        ...{ key, channel, fromUid, clientMsgNo, type, data: "" },
        ...{ eventId: undefined, timestampMs: undefined, force: true },
      });
    this.#model.send(fromUid, channel, { redDot: true, expireS: 0 });
  }

  async change(): Promise<void> {
    const random = this.#random;
    const uid = random.pick(UIDS);
    const channel = random.pick(CHANNELS);
    const change: ConversationChange = random.pick([
      { kind: "read", seq: random.below(60) },
      { kind: "unread", unread: random.below(10) },
      { kind: "unread", unread: random.below(10) },
      { kind: "delete" },
    ]);
    const now = await this.#store.changeConversation(uid, channel, change);
    this.#model.change(uid, channel, change);
    const expected = this.#model.seen(uid, channel);
    this.#isSame(now && seenOf(now), expected, `answer to ${change.kind}`);
  }

  async join(): Promise<void> {
    const id = this.#random.pick(GROUPS);
    const uid = this.#random.pick(UIDS);
    await this.#store.addSubscribers(group(id), [uid], PERMANENT);
    this.#model.join(id, uid);
  }

  async leave(): Promise<void> {
    const id = this.#random.pick(GROUPS);
    const [uid] = this.#model.membersOf(id);
    if (uid === undefined) return;
    await this.#store.removeSubscribers(group(id), [uid], "permanent");
    this.#model.leave(id, uid);
  }

  async pass(): Promise<void> {
    this.#model.pass(this.#random.below(15_000));
  }

  /** Whether store and model agree on everything; tells where they do not. */
  async agrees(): Promise<boolean> {
    const answers = await Promise.all(UIDS.map((uid) => this.#agreesOn(uid)));
    return answers.every((isSame) => isSame);
  }

  async #agreesOn(uid: string): Promise<boolean> {
    const heads = newestFirst(await this.#store.conversationsOf(uid));
    const expected = this.#model.list(uid, CHANNELS);
    if (!this.#isSame(heads.map(seenOf), expected, `list of ${uid}`))
      return false;
    const channels = heads.map(({ channel }) => channel);
    const { conversations } = await this.#store.readConversations(
      ...([uid, channels, ALL_OF_THEM] as const),
    );
    const whole = conversations.map(headOf);
    if (!this.#isSame(whole, heads, `messages of ${uid}`)) return false;
    const all = await Promise.all(
      CHANNELS.map((channel) => this.#store.conversation(uid, channel)),
    );
    const seen = all.map((one) => one && seenOf(one));
    const there = CHANNELS.map((channel) => this.#model.seen(uid, channel));
    return this.#isSame(seen, there, `channels of ${uid}`);
  }

  /** An assertion only where they differ: there are thousands of questions. */
  #isSame(found: unknown, expected: unknown, what: string): boolean {
    if (isDeepStrictEqual(found, expected)) return true;
    return this.#t.same(found, expected, what);
  }
}

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

t.test("random calls agree with a plain model", async (t) => {
  const { url } = await startRedis(t);
  for (let round = 0; round < ROUNDS; round++) {
    const seed = SEED + round;
    const retentionS = round % 2 === 0 ? 0 : RETENTION_S;
    const maxChannelMessages = round < ROUNDS / 2 ? 0 : KEEPS;
    const limits = { retentionS, maxChannelMessages };
    t.test(`SEED=${seed}, ${JSON.stringify(limits)}`, async (t) => {
      const random = new Random(seed);
      const model = new ConversationModel(limits);
      const clock = () => model.nowMs;
      const options = { clock, ...limits };
      const { store, sweep, problems } = await openConversations(
        t,
        url,
        options,
      );
      const pair = new Pair(t, random, { store, model });
      await pair.found();
      const steps: readonly (readonly [number, () => Promise<void>])[] = [
        [30, () => pair.send()],
        [3, () => pair.stream()],
        [30, () => pair.change()],
        [8, () => pair.join()],
        [4, () => pair.leave()],
        [10, () => pair.pass()],
        [
          6,
          async () => {
            await sweep.run();
            model.sweep();
          },
        ],
      ];
      const dice = steps.flatMap(([weight, step]) =>
        Array.from({ length: weight }, () => step),
      );
      let step = 0;
      do await random.pick(dice)();
      while ((await pair.agrees()) && ++step < STEPS);
      t.equal(step, STEPS, "agreed through all steps");
      t.same(problems, []);
    });
  }
});
