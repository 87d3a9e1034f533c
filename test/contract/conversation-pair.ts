// Applies the same random operations to a store and to the conversation model, and compares them
// after each. Every driver's conversations are tested with it.

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
import { ALL, conversationsIn, conversationsOf } from "../support/conversation-list.ts";
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
  /** Returns the current store. Tests may replace it by restarting. */
  readonly store: () => ChannelStore &
    ConversationStore &
    Pick<MessageStore, "append"> &
    Pick<StreamStore, "streamEvent">;
  /**
   * Milliseconds between two messages. A store that orders the ids of one millisecond only within a
   * channel needs at least 1.
   */
  readonly tickMs?: number;
}

/** An operation and its relative frequency. */
export type WeightedStep = readonly [weight: number, operation: () => Promise<unknown>];

export class ConversationPair {
  readonly #t: Test;
  readonly #options: ConversationPairOptions;

  constructor(t: Test, options: ConversationPairOptions) {
    this.#t = t;
    this.#options = options;
  }

  /**
   * Creates the groups, then runs `count` random operations from `also` and from the list that all
   * callers share. Stops early if store and model differ.
   */
  async run(count: number, also: readonly WeightedStep[]): Promise<void> {
    const { random, model, store } = this.#options;
    for (const id of GROUPS) {
      await store().createChannel(group(id), []);
      model.create(id);
    }
    const operations: readonly WeightedStep[] = [
      [30, () => this.send()],
      [3, () => this.#stream()],
      [30, () => this.#change()],
      [8, () => this.#join()],
      [4, () => this.#leave()],
      [10, async () => model.advanceClock(random.below(15_000))],
      ...also,
    ];
    const choices = operations.flatMap(([weight, operation]) =>
      Array.from({ length: weight }, () => operation),
    );
    let done = 0;
    do await random.pick(choices)();
    while ((await this.compare()) && ++done < count);
    this.#t.equal(done, count, "store and model agree after every operation");
  }

  /** Sends one to four messages at the same time. */
  async send(): Promise<void> {
    const { random, model, store, tickMs = 0 } = this.#options;
    const calls: Promise<unknown>[] = [];
    for (let i = 1 + random.below(4); i > 0; i--) {
      model.advanceClock(tickMs);
      const fromUid = random.pick(UIDS);
      const channel = random.pick(CHANNELS);
      const redDot = random.below(4) > 0;
      const expireS = random.below(3) === 0 ? 1 + random.below(60) : 0;
      const header = { noPersist: false, redDot };
      const draft = draftOf({ channel, fromUid, header, expireS });
      calls.push(store().append(draft));
      model.send(fromUid, channel, { redDot, expireS });
    }
    model.storedTogether(calls.length);
    await Promise.all(calls);
  }

  /**
   * Returns true if store and model agree on all conversations. Otherwise a failed assertion
   * reports the difference.
   */
  async compare(): Promise<boolean> {
    const results = await Promise.all(UIDS.map((uid) => this.#compareUser(uid)));
    return results.every((isSame) => isSame);
  }

  async #stream(): Promise<void> {
    const { random, model, store, tickMs = 0 } = this.#options;
    model.advanceClock(tickMs);
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
      { kind: "delete", seq: random.below(60) },
    ]);
    const changed = await store().changeConversation(uid, channel, change);
    model.change(uid, channel, change);
    const expected = model.stateOf(uid, channel);
    this.#expectSame(
      changed && stateOf(changed),
      expected,
      `the result of ${change.kind} is that of the model`,
    );
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
    const heads = newestFirst(await conversationsOf(store, uid));
    const expected = model.list(uid, CHANNELS);
    if (!this.#expectSame(heads.map(stateOf), expected, `the list of ${uid} is that of the model`))
      return false;
    const unread = await conversationsIn(store, uid, { ...ALL, onlyUnread: true });
    if (
      !this.#expectSame(
        newestFirst(unread),
        heads.filter((head) => head.unread > 0),
        `the unread conversations of ${uid} are those of the list`,
      )
    )
      return false;
    const channels = heads.map(({ channel }) => channel);
    const { conversations } = await store.readConversations(
      ...([uid, channels, UNBOUNDED] as const),
    );
    const headsOfRead = conversations.map(headOf);
    if (
      !this.#expectSame(
        headsOfRead,
        heads,
        `the conversations of ${uid} have the heads of the list`,
      )
    )
      return false;
    const all = await Promise.all(CHANNELS.map((channel) => store.conversation(uid, channel)));
    const states = all.map((conversation) => conversation && stateOf(conversation));
    const expectedStates = CHANNELS.map((channel) => model.stateOf(uid, channel));
    return this.#expectSame(
      states,
      expectedStates,
      `the channels of ${uid} are those of the model`,
    );
  }

  /** Asserts only if the values differ, because there are tens of thousands of comparisons. */
  #expectSame(actual: unknown, expected: unknown, message: string): boolean {
    if (isDeepStrictEqual(actual, expected)) return true;
    return this.#t.same(actual, expected, message);
  }
}

function stateOf(conversation: Conversation | ConversationHead): ConversationState {
  const { last, ...rest } = conversation;
  return { ...rest, lastSeq: last?.messageSeq };
}

/** Returns the conversation in the form that it has in a list without message contents. */
function headOf({ last, ...rest }: Conversation): object {
  if (last === undefined) return rest;
  const { messageId, messageSeq, clientMsgNo, timestampMs } = last;
  return { ...rest, last: { messageId, messageSeq, clientMsgNo, timestampMs } };
}
