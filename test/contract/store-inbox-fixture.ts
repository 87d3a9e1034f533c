// What the Store contract's suites of commands and inboxes work with: drafts, reads, and what was
// told of a command.

import { channelKey, type InboxCommand } from "../../src/broker/model.ts";
import type { ClusterEvent, CommandDraft, HistoryRange } from "../../src/broker/ports.ts";
import { ALL, type StoreFixture } from "./store-fixture.ts";

/** A draft of a command in group g; `over` replaces parts of it. */
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

/** A command of a chosen clientMsgNo. */
export const retry = (clientMsgNo: string, over: Partial<CommandDraft> = {}) =>
  commandOf({ clientMsgNo, ...over });
export const inboxSeqsOf = (commands: readonly InboxCommand[]) => commands.map((c) => c.inboxSeq);
/** What is in the inbox of `uid`. */
export const read = (
  { store }: StoreFixture,
  uid: string,
  after = 0,
  page: Partial<HistoryRange> = {},
) => store.readInbox(uid, after, { ...ALL, ...page });

/** Whose events the suites look at: a bench on topics listens to these users. */
export const LISTENED_USERS: readonly string[] = [
  ...["alice", "bob", "bo", "carol", "älice", "cärol", "\u{1F600}"],
  ...["u0", "u1", "u2", "user-0", "user-5000", "user-9999"],
];

type CommandEvent = Extract<ClusterEvent, { readonly kind: "command" }>;
/** The events of commands, in their order. */
export const copiesOf = (fixture: StoreFixture): CommandEvent[] =>
  fixture.events.flatMap((e) => (e.kind === "command" ? [e] : []));

/** What was told of each command: a driver may tell its users of it in one event or in several. */
export function commandEvents(fixture: StoreFixture): readonly CommandEvent[] {
  const told = new Map<number, CommandEvent>();
  for (const event of copiesOf(fixture)) {
    const { messageId } = event.message;
    const before = told.get(messageId)?.copies ?? [];
    told.set(messageId, { ...event, copies: [...before, ...event.copies] });
  }
  return [...told.values()];
}
