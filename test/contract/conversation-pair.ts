// A store of conversations and the plain model beside it, told the same at random and compared: for
// tests of each driver. State: both, by way of its parts.

import { isDeepStrictEqual } from "node:util";
import type { Test } from "tap";
import type { ChannelRef, Conversation, ConversationHead } from "../../src/broker/model.ts";
import type {
  ChannelStore,
  ConversationChange,
  ConversationStore,
  MessageStore,
  StreamStore,
} from "../../src/broker/ports.ts";
import type { Random } from "../support/random.ts";
import { newestFirst, UNBOUNDED } from "./conversation-fixture.ts";
import type { ConversationModel, ConversationState } from "./conversation-model.ts";
import { draftOf, group, PERMANENT } from "./store-fixture.ts";

const UIDS = ["a", "b", "c", "d"];
const GROUPS = ["g", "h"];
const CHANNELS: readonly ChannelRef[] = [
  ...GROUPS.map((id): ChannelRef => ({ id, type: 2 })),
  ...UIDS.map((id): ChannelRef => ({ id, type: 1 })),
];

export interface ConversationPairOptions {
  readonly random: Random;
  readonly model: ConversationModel;
  /** The store of now: tests start it again. */
  readonly store: () => ChannelStore &
    ConversationStore &
    Pick<MessageStore, "append"> &
    Pick<StreamStore, "streamEvent">;
  /** Time between two messages, where ids of one millisecond are ordered within a channel only. */
  readonly tickMs?: number;
}

/** How often a step comes, and the step. */
export type WeightedStep = readonly [weight: number, step: () => Promise<unknown>];

export class ConversationPair {
  readonly #t: Test;
  readonly #options: ConversationPairOptions;

  constructor(t: Test, options: ConversationPairOptions) {
    this.#t = t;
    this.#options = options;
  }

  /**
   * Makes the groups, then takes so many steps, those of every driver and `also`, as long as store
   * and model agree.
   */
  async run(count: number, also: readonly WeightedStep[]): Promise<void> {
    const { random, model, store } = this.#options;
    for (const id of GROUPS) {
      await store().createChannel(group(id), []);
      model.create(id);
    }
    const steps: readonly WeightedStep[] = [
      [30, () => this.send()],
      [3, () => this.#stream()],
      [30, () => this.#change()],
      [8, () => this.#join()],
      [4, () => this.#leave()],
      [10, async () => model.pass(random.below(15_000))],
      ...also,
    ];
    const dice = steps.flatMap(([weight, step]) => Array.from({ length: weight }, () => step));
    let step = 0;
    do await random.pick(dice)();
    while ((await this.compare()) && ++step < count);
    this.#t.equal(step, count, "agreed through all steps");
  }

  /** A few messages at once. */
  async send(): Promise<void> {
    const { random, model, store, tickMs = 0 } = this.#options;
    const calls: Promise<unknown>[] = [];
    for (let i = 1 + random.below(4); i > 0; i--) {
      model.pass(tickMs);
      const fromUid = random.pick(UIDS);
      const channel = random.pick(CHANNELS);
      const redDot = random.below(4) > 0;
      const expireS = random.below(3) === 0 ? 1 + random.below(60) : 0;
      const header = { noPersist: false, redDot };
      const draft = draftOf({ channel, fromUid, header, expireS });
      calls.push(store().append(draft));
      model.send(fromUid, channel, { redDot, expireS });
    }
    await Promise.all(calls);
  }

  /** Whether store and model agree on everything; tells where they do not. */
  async compare(): Promise<boolean> {
    const answers = await Promise.all(UIDS.map((uid) => this.#compareUser(uid)));
    return answers.every((isSame) => isSame);
  }

  async #stream(): Promise<void> {
    const { random, model, store, tickMs = 0 } = this.#options;
    model.pass(tickMs);
    const { key, channel, fromUid } = draftOf({
      channel: random.pick(CHANNELS),
      fromUid: random.pick(UIDS),
    });
    const clientMsgNo = `stream ${random.below(2 ** 48)}`;
    for (const type of ["___TextMessageStart", "___TextMessageEnd"])
      await store().streamEvent({
        ...{ key, channel, fromUid, clientMsgNo, type, data: "" },
        ...{ eventId: undefined, timestampMs: undefined, force: true },
      });
    model.send(fromUid, channel, { redDot: true, expireS: 0 });
  }

  async #change(): Promise<void> {
    const { random, model, store } = this.#options;
    const uid = random.pick(UIDS);
    const channel = random.pick(CHANNELS);
    const change: ConversationChange = random.pick([
      { kind: "read", seq: random.below(60) },
      { kind: "unread", unread: random.below(10) },
      { kind: "unread", unread: random.below(10) },
      { kind: "delete" },
    ]);
    const now = await store().changeConversation(uid, channel, change);
    model.change(uid, channel, change);
    const expected = model.seen(uid, channel);
    this.#expectSame(now && seenOf(now), expected, `answer to ${change.kind}`);
  }

  async #join(): Promise<void> {
    const { random, model, store } = this.#options;
    const id = random.pick(GROUPS);
    const uid = random.pick(UIDS);
    await store().addSubscribers(group(id), [uid], PERMANENT);
    model.join(id, uid);
  }

  async #leave(): Promise<void> {
    const { random, model, store } = this.#options;
    const id = random.pick(GROUPS);
    const [uid] = model.membersOf(id);
    if (uid === undefined) return;
    await store().removeSubscribers(group(id), [uid], "permanent");
    model.leave(id, uid);
  }

  async #compareUser(uid: string): Promise<boolean> {
    const { model } = this.#options;
    const store = this.#options.store();
    const heads = newestFirst(await store.conversationsOf(uid));
    const expected = model.list(uid, CHANNELS);
    if (!this.#expectSame(heads.map(seenOf), expected, `list of ${uid}`)) return false;
    const channels = heads.map(({ channel }) => channel);
    const { conversations } = await store.readConversations(
      ...([uid, channels, UNBOUNDED] as const),
    );
    const whole = conversations.map(headOf);
    if (!this.#expectSame(whole, heads, `messages of ${uid}`)) return false;
    const all = await Promise.all(CHANNELS.map((channel) => store.conversation(uid, channel)));
    const seen = all.map((one) => one && seenOf(one));
    const there = CHANNELS.map((channel) => model.seen(uid, channel));
    return this.#expectSame(seen, there, `channels of ${uid}`);
  }

  /** An assertion only where they differ: there are tens of thousands of questions. */
  #expectSame(found: unknown, expected: unknown, what: string): boolean {
    if (isDeepStrictEqual(found, expected)) return true;
    return this.#t.same(found, expected, what);
  }
}

function seenOf(conversation: Conversation | ConversationHead): ConversationState {
  const { last, ...rest } = conversation;
  return { ...rest, lastSeq: last?.messageSeq };
}

/** A conversation as a list without content has it. */
function headOf({ last, ...rest }: Conversation): object {
  if (last === undefined) return rest;
  const { messageId, messageSeq, clientMsgNo, timestampMs } = last;
  return { ...rest, last: { messageId, messageSeq, clientMsgNo, timestampMs } };
}
