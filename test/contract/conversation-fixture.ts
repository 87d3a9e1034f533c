// What the Store contract's suites of conversations work with.

import type { Test } from "tap";
import type { ChannelRef, Conversation, ConversationHead } from "../../src/broker/model.ts";
import type { ConversationChange, MessageDraft } from "../../src/broker/ports.ts";
import { draftOf, type FixtureFactory, group, type StoreFixture } from "./store-fixture.ts";

export const G: ChannelRef = { id: "g", type: 2 };
export const personalChannel = (id: string): ChannelRef => ({ id, type: 1 });
export const NO_RED_DOT = { noPersist: false, redDot: false };

export const readUpTo = (seq: number): ConversationChange => ({
  kind: "read",
  seq,
});
export const markUnread = (count: number): ConversationChange => ({
  kind: "unread",
  unread: count,
});
export const DELETE: ConversationChange = { kind: "delete" };

/** A bench with a group g of alice, bob and carol. */
export async function withGroup(createFixture: FixtureFactory, t: Test): Promise<StoreFixture> {
  const fixture = await createFixture(t);
  await fixture.store.createChannel(group("g"), ["alice", "bob", "carol"]);
  return fixture;
}

export async function send(
  { store }: StoreFixture,
  count: number,
  over: Partial<MessageDraft> = {},
): Promise<void> {
  await Promise.all(Array.from({ length: count }, () => store.append(draftOf(over))));
}

/** What stands in a conversation, for comparing. */
export async function conversationNumbers(
  { store }: StoreFixture,
  uid: string,
  channel: ChannelRef = G,
): Promise<readonly number[] | undefined> {
  const found = await store.conversation(uid, channel);
  return found && numbersOf(found);
}

export function numbersOf(c: Conversation | ConversationHead): readonly number[] {
  return [c.headSeq, c.readSeq, c.unread, c.deletedSeq];
}

export async function changeConversation(
  { store }: StoreFixture,
  change: ConversationChange,
  uid = "bob",
): Promise<readonly number[] | undefined> {
  const found = await store.changeConversation(uid, G, change);
  return found && numbersOf(found);
}

export const UNBOUNDED = { limit: 1000, maxBytes: 1_000_000_000 };

/** The user's conversations by id, newest message first. */
export const conversationIds = async ({ store }: StoreFixture, uid: string) =>
  newestFirst(await store.conversationsOf(uid)).map((c) => c.channel.id);

export function newestFirst(heads: readonly ConversationHead[]): readonly ConversationHead[] {
  return heads.toSorted(
    ({ last: a }, { last: b }) => b.timestampMs - a.timestampMs || b.messageId - a.messageId,
  );
}
