// Helpers for the Store contract's suites of conversations.

import type { Test } from "tap";
import type { ChannelRef, Conversation, ConversationHead } from "../../src/broker/model.ts";
import type { ConversationChange, MessageDraft } from "../../src/broker/ports.ts";
import { conversationsOf } from "../support/conversation-list.ts";
import { draftOf, type FixtureFactory, group, type StoreFixture } from "./store-fixture.ts";

/** The group that `withGroup` creates. */
export const G: ChannelRef = { id: "g", type: 2 };
export const personalChannel = (id: string): ChannelRef => ({ id, type: 1 });
export const NO_RED_DOT = { noPersist: false, redDot: false };

/** The change that reads the conversation up to `seq`. */
export const readUpTo = (seq: number): ConversationChange => ({
  kind: "read",
  seq,
});
/** The change after which `count` messages are unread. */
export const markUnread = (count: number): ConversationChange => ({
  kind: "unread",
  unread: count,
});
/** The change that deletes the conversation. */
export const DELETE: ConversationChange = { kind: "delete" };

/** Creates a fixture whose store has a group `g` with the members alice, bob and carol. */
export async function withGroup(createFixture: FixtureFactory, t: Test): Promise<StoreFixture> {
  const fixture = await createFixture(t);
  await fixture.store.createChannel(group("g"), ["alice", "bob", "carol"]);
  return fixture;
}

/** Appends `count` equal messages at the same time. */
export async function send(
  { store }: StoreFixture,
  count: number,
  over: Partial<MessageDraft> = {},
): Promise<void> {
  await Promise.all(Array.from({ length: count }, () => store.append(draftOf(over))));
}

/**
 * Returns the user's head, read position, unread count and deleted position in the channel. Returns
 * `undefined` if the user has no such conversation.
 */
export async function conversationNumbers(
  { store }: StoreFixture,
  uid: string,
  channel: ChannelRef = G,
): Promise<readonly number[] | undefined> {
  const conversation = await store.conversation(uid, channel);
  return conversation && numbersOf(conversation);
}

export function numbersOf(c: Conversation | ConversationHead): readonly number[] {
  return [c.headSeq, c.readSeq, c.unread, c.deletedSeq];
}

/** Changes the conversation with group `g` and returns its new numbers. */
export async function changeConversation(
  { store }: StoreFixture,
  change: ConversationChange,
  uid = "bob",
): Promise<readonly number[] | undefined> {
  const conversation = await store.changeConversation(uid, G, change);
  return conversation && numbersOf(conversation);
}

/** Limits that no conversation list of these tests reaches. */
export const UNBOUNDED = { limit: 1000, maxBytes: 1_000_000_000 };

/** Returns the channel ids of the user's conversations, newest message first. */
export const conversationIds = async ({ store }: StoreFixture, uid: string) =>
  newestFirst(await conversationsOf(store, uid)).map((c) => c.channel.id);

export function newestFirst(heads: readonly ConversationHead[]): readonly ConversationHead[] {
  return heads.toSorted(
    ({ last: a }, { last: b }) => b.timestampMs - a.timestampMs || b.messageId - a.messageId,
  );
}
