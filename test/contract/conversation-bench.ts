// What the Store contract's suites of conversations work with.

import type { Test } from "tap";
import type { ChannelRef, Conversation, ConversationHead } from "../../src/broker/model.ts";
import type { ConversationChange, MessageDraft } from "../../src/broker/ports.ts";
import { type Bench, draftOf, type Given, group } from "./store-bench.ts";

export const G: ChannelRef = { id: "g", type: 2 };
export const withUser = (id: string): ChannelRef => ({ id, type: 1 });
export const SILENT = { noPersist: false, redDot: false };

export const read = (seq: number): ConversationChange => ({
  kind: "read",
  seq,
});
export const unread = (count: number): ConversationChange => ({
  kind: "unread",
  unread: count,
});
export const DELETE: ConversationChange = { kind: "delete" };

/** A bench with a group g of alice, bob and carol. */
export async function withGroup(given: Given, t: Test): Promise<Bench> {
  const bench = await given(t);
  await bench.store.createChannel(group("g"), ["alice", "bob", "carol"]);
  return bench;
}

export async function send(
  { store }: Bench,
  count: number,
  over: Partial<MessageDraft> = {},
): Promise<void> {
  await Promise.all(Array.from({ length: count }, () => store.append(draftOf(over))));
}

/** What stands in a conversation, for comparing. */
export async function standing(
  { store }: Bench,
  uid: string,
  channel: ChannelRef = G,
): Promise<readonly number[] | undefined> {
  const found = await store.conversation(uid, channel);
  return found && numbers(found);
}

export function numbers(c: Conversation | ConversationHead): readonly number[] {
  return [c.headSeq, c.readSeq, c.unread, c.deletedSeq];
}

export async function changed(
  { store }: Bench,
  change: ConversationChange,
  uid = "bob",
): Promise<readonly number[] | undefined> {
  const found = await store.changeConversation(uid, G, change);
  return found && numbers(found);
}

export const ALL_OF_THEM = { limit: 1000, maxBytes: 1_000_000_000 };

/** The user's conversations by id, newest message first. */
export const listed = async ({ store }: Bench, uid: string) =>
  newestFirst(await store.conversationsOf(uid)).map((c) => c.channel.id);

export function newestFirst(heads: readonly ConversationHead[]): readonly ConversationHead[] {
  return heads.toSorted(
    ({ last: a }, { last: b }) => b.timestampMs - a.timestampMs || b.messageId - a.messageId,
  );
}
