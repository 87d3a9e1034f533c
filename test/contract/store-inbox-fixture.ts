// Helpers for the Store contract's suites of commands and inboxes: drafts, reads and the published
// events.

import { channelKey, type InboxCommand } from "../../src/broker/model.ts";
import type { ClusterEvent, CommandDraft, HistoryRange } from "../../src/broker/ports.ts";
import { ALL, type StoreFixture } from "./store-fixture.ts";

/** Returns a draft of a command by alice in group g to bob. `over` replaces fields. */
export function commandOf(over: Partial<CommandDraft> = {}): CommandDraft {
  const channel = over.channel ?? { id: "g", type: 2 };
  const fromUid = over.fromUid ?? "alice";
  return {
    key: channelKey(channel, fromUid),
    channel,
    fromUid,
    clientMsgNo: "",
    header: { noPersist: false, redDot: false },
    expireS: 0,
    tagKey: undefined,
    payload: new TextEncoder().encode('{"type":99,"cmd":"cmd"}'),
    recipients: ["bob"],
    pushOnlyRecipients: [],
    origin: undefined,
    ...over,
  };
}

/** Returns a draft with this `clientMsgNo`. A second append of it is a retry. */
export const commandRetryOf = (clientMsgNo: string, over: Partial<CommandDraft> = {}) =>
  commandOf({ clientMsgNo, ...over });
export const inboxSeqsOf = (commands: readonly InboxCommand[]) => commands.map((c) => c.inboxSeq);
/** Reads the commands in the inbox of `uid` after the inboxSeq `after`. */
export const readInbox = (
  { store }: StoreFixture,
  uid: string,
  after = 0,
  page: Partial<HistoryRange> = {},
) => store.readInbox(uid, after, { ...ALL, ...page });

/** Users whose events a store with topics passes to the fixture. */
export const LISTENED_USERS: readonly string[] = [
  ...["alice", "bob", "bo", "carol", "älice", "cärol", "\u{1F600}"],
  ...["u0", "u1", "u2", "user-0", "user-5000", "user-9999"],
];

/** An event that publishes copies of a command to some of its users. */
type CommandEvent = Extract<ClusterEvent, { readonly kind: "command" }>;
/** Returns the published events of commands, in order. */
export const commandEventsOf = (fixture: StoreFixture): CommandEvent[] =>
  fixture.events.flatMap((event) => (event.kind === "command" ? [event] : []));

/**
 * Returns one event for each published command, with the copies of all its users. A store may
 * publish a command in several events, each to some of the users.
 */
export function mergedCommandEvents(fixture: StoreFixture): readonly CommandEvent[] {
  const merged = new Map<number, CommandEvent>();
  for (const event of commandEventsOf(fixture)) {
    const { messageId } = event.message;
    const copies = merged.get(messageId)?.copies ?? [];
    merged.set(messageId, { ...event, copies: [...copies, ...event.copies] });
  }
  return [...merged.values()];
}
