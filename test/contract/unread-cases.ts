// Read positions and unread counts as a table [ports: ConversationStore]: steps, and the users'
// positions after them. Contains only data; `store-unread.ts` tests every driver with it.

import type { ChannelFlags } from "../../src/broker/model.ts";
import type { Membership } from "../../src/broker/ports.ts";

/** A step of a case. The step concerns the case's group, unless it names another user. */
export type UnreadStep =
  | {
      readonly kind: "send";
      readonly count: number;
      readonly from: string;
      /** The other user of a personal channel. Absent for the group. */
      readonly to?: string;
      readonly redDot: boolean;
      readonly expireS: number;
      readonly noPersist: boolean;
    }
  | { readonly kind: "stream" | "command" | "sweep" | "restart" }
  | {
      readonly kind: "read";
      readonly uid: string;
      readonly with?: string;
      readonly seq: number;
    }
  | { readonly kind: "unread"; readonly uid: string; readonly unread: number }
  | { readonly kind: "delete"; readonly uid: string }
  | {
      readonly kind: "join" | "leave";
      readonly uid: string;
      readonly membership: Membership;
    }
  | { readonly kind: "reset"; readonly uids: readonly string[] }
  | { readonly kind: "flags"; readonly flags: ChannelFlags }
  | { readonly kind: "pass"; readonly ms: number };

/**
 * Positions by user: `bob`, or `bob with alice` for their personal channel. A position is headSeq,
 * readSeq, unread, deletedSeq, and the seq of the last message that is shown. If no message is
 * shown, the seq is `-`, and lists leave the conversation out. The position is `none` if the user
 * has no such conversation.
 */
type Positions = Readonly<Record<string, string>>;

/** A sequence of steps, each with the positions that are expected after it. */
export interface UnreadCase {
  readonly title: string;
  /** Number of newest messages that the channel keeps. Absent if there is no limit. */
  readonly maxChannelMessages?: number;
  /** Seconds for which the channel keeps a message. Absent if there is no limit. */
  readonly retentionS?: number;
  readonly lines: readonly (readonly [UnreadStep, Positions?])[];
}

type Send = Extract<UnreadStep, { readonly kind: "send" }>;
const send = (count: number, over: Partial<Send> = {}): UnreadStep => ({
  ...{ kind: "send", count, from: "alice", redDot: true, expireS: 0 },
  noPersist: false,
  ...over,
});
const sendWithoutDot = (count: number, over: Partial<Send> = {}) =>
  send(count, { redDot: false, ...over });
const sendFrom = (from: string, over: Partial<Send> = {}) => send(1, { from, ...over });
const read = (uid: string, seq: number): UnreadStep => ({ kind: "read", uid, seq });
const unread = (uid: string, count: number): UnreadStep => ({
  ...{ kind: "unread", uid, unread: count },
});
const deleteFor = (uid: string): UnreadStep => ({ kind: "delete", uid });
const join = (uid: string, membership: Membership = "permanent"): UnreadStep => ({
  ...{ kind: "join", uid, membership },
});
const leave = (uid: string, membership: Membership = "permanent"): UnreadStep => ({
  ...{ kind: "leave", uid, membership },
});
const reset = (...uids: readonly string[]): UnreadStep => ({ kind: "reset", uids });
const flags = (values: ChannelFlags): UnreadStep => ({ kind: "flags", flags: values });
const passS = (seconds: number): UnreadStep => ({ kind: "pass", ms: seconds * 1000 });
const STREAM: UnreadStep = { kind: "stream" };
const COMMAND: UnreadStep = { kind: "command" };
const SWEEP: UnreadStep = { kind: "sweep" };
const RESTART: UnreadStep = { kind: "restart" };

/**
 * Each case begins with an empty group of alice, bob and carol. All positions are checked again
 * after a restart.
 */
export const UNREAD_CASES: readonly UnreadCase[] = [
  {
    title: "messages with a red dot after the read position are unread",
    lines: [
      [send(3), { bob: "3 0 3 0 3" }],
      [sendWithoutDot(2), { bob: "5 0 3 0 5" }],
      [send(1), { bob: "6 0 4 0 6", carol: "6 0 4 0 6" }],
      [RESTART, { bob: "6 0 4 0 6" }],
      [send(2)],
      [sendWithoutDot(1), { bob: "9 0 6 0 9" }],
      [read("bob", 4), { bob: "9 4 3 0 9" }],
    ],
  },
  {
    title: "a conversation without messages has position 0, and changes to it have no effect",
    lines: [
      [read("bob", 5), { bob: "0 0 0 0 -", carol: "0 0 0 0 -" }],
      [unread("bob", 5), { bob: "0 0 0 0 -" }],
      [deleteFor("bob"), { bob: "0 0 0 0 -" }],
      [send(1), { bob: "1 0 1 0 1" }],
    ],
  },
  {
    title: "a stream counts as an unread message, but unstored messages and commands do not",
    lines: [
      [send(1, { noPersist: true }), { bob: "0 0 0 0 -" }],
      [COMMAND, { bob: "0 0 0 0 -" }],
      [STREAM, { bob: "1 0 1 0 1", alice: "1 1 0 0 1" }],
      [send(1, { noPersist: true, from: "bob" }), { bob: "1 0 1 0 1" }],
    ],
  },
  {
    title: "sending a message moves the sender's read position to it",
    lines: [
      [send(3)],
      [sendFrom("bob"), { bob: "4 4 0 0 4" }],
      [send(2), { bob: "6 4 2 0 6", alice: "6 6 0 0 6", carol: "6 0 6 0 6" }],
      [RESTART, { bob: "6 4 2 0 6" }],
      [sendFrom("bob"), { bob: "7 7 0 0 7", carol: "7 0 7 0 7" }],
      [sendFrom("bob", { redDot: false }), { bob: "8 8 0 0 8", carol: "8 0 7 0 8" }],
    ],
  },
  {
    title: "sending a message that expires moves the sender's read position to it",
    lines: [
      [send(2)],
      [sendFrom("bob", { expireS: 10 }), { bob: "3 3 0 0 3", carol: "3 0 3 0 3" }],
      [passS(10), { bob: "3 3 0 0 2", carol: "3 0 2 0 2" }],
    ],
  },
  {
    title: "each user of a personal channel has a separate unread count",
    lines: [
      [send(3, { to: "bob" }), { "bob with alice": "3 0 3 0 3" }],
      [
        send(2, { from: "bob", to: "alice" }),
        { "alice with bob": "5 3 2 0 5", "bob with alice": "5 5 0 0 5" },
      ],
      [
        { kind: "read", uid: "bob", with: "alice", seq: 1 },
        { "alice with bob": "5 3 2 0 5", "bob with alice": "5 1 4 0 5" },
      ],
      [send(1, { to: "bob" }), { "alice with bob": "6 6 0 0 6", "bob with alice": "6 1 5 0 6" }],
    ],
  },
  {
    title: "messages that users send to themselves count as read",
    lines: [
      [send(2, { from: "bob", to: "bob" }), { "bob with bob": "2 2 0 0 2" }],
      [{ kind: "read", uid: "bob", with: "bob", seq: 0 }, { "bob with bob": "2 0 2 0 2" }],
    ],
  },
  {
    title: "the read position can be moved forward and back, within the seqs of the channel",
    lines: [
      [send(10)],
      [read("bob", 7), { bob: "10 7 3 0 10" }],
      [read("bob", 2), { bob: "10 2 8 0 10" }],
      [read("bob", 99), { bob: "10 10 0 0 10" }],
      [read("bob", -3), { bob: "10 0 10 0 10" }],
      [read("bob", 4), { bob: "10 4 6 0 10", carol: "10 0 10 0 10" }],
    ],
  },
  {
    title: "a read position that was moved back stays until the user sends a message",
    lines: [
      [send(3)],
      [sendFrom("bob")],
      [read("bob", 1), { bob: "4 1 3 0 4" }],
      [send(1), { bob: "5 1 4 0 5" }],
      [RESTART, { bob: "5 1 4 0 5" }],
      [sendFrom("bob"), { bob: "6 6 0 0 6" }],
      [send(1), { bob: "7 6 1 0 7" }],
    ],
  },
  {
    title: "a read position that was moved forward stays until the user sends a message",
    lines: [
      [sendFrom("bob")],
      [send(4)],
      [read("bob", 3), { bob: "5 3 2 0 5" }],
      [send(1), { bob: "6 3 3 0 6" }],
      [sendFrom("bob"), { bob: "7 7 0 0 7" }],
      [read("bob", 7), { bob: "7 7 0 0 7" }],
      [send(1), { bob: "8 7 1 0 8" }],
    ],
  },
  {
    title: "setting an unread count makes that many newest messages unread, at most all of them",
    lines: [
      [send(3)],
      [sendWithoutDot(2)],
      [send(2)],
      [sendWithoutDot(1)],
      [unread("bob", 1), { bob: "8 6 1 0 8" }],
      [unread("bob", 2), { bob: "8 5 2 0 8" }],
      [unread("bob", 3), { bob: "8 2 3 0 8" }],
      [unread("bob", 1000), { bob: "8 0 5 0 8" }],
      [unread("bob", 0), { bob: "8 8 0 0 8" }],
    ],
  },
  {
    title: "messages before the deletion of a conversation are not shown again",
    lines: [
      [send(3)],
      [deleteFor("bob"), { bob: "3 3 0 3 -", carol: "3 0 3 0 3" }],
      [read("bob", 1), { bob: "3 3 0 3 -" }],
      [unread("bob", 2), { bob: "3 3 0 3 -" }],
      [RESTART, { bob: "3 3 0 3 -" }],
      [send(2), { bob: "5 3 2 3 5" }],
      [unread("bob", 9), { bob: "5 3 2 3 5" }],
      [read("bob", 0), { bob: "5 3 2 3 5" }],
      [sendFrom("bob"), { bob: "6 6 0 3 6" }],
      [unread("bob", 9), { bob: "6 3 3 3 6" }],
      [deleteFor("bob"), { bob: "6 6 0 6 -" }],
    ],
  },
  {
    title: "only members of an existing group have a conversation with it",
    lines: [
      [send(1), { dave: "none" }],
      [read("dave", 1), { dave: "none" }],
      [flags({ disband: true }), { bob: "none" }],
      [read("bob", 1), { bob: "none" }],
    ],
  },
  {
    title: "all earlier messages of a group count as read for a user who joins",
    lines: [
      [send(3)],
      [join("dave"), { dave: "3 3 0 0 3" }],
      [send(2), { dave: "5 3 2 0 5" }],
      [join("dave")],
      [join("dave", "temporary"), { dave: "5 3 2 0 5" }],
      [unread("dave", 4), { dave: "5 1 4 0 5" }],
      [join("temp", "temporary"), { temp: "5 5 0 0 5" }],
      [send(1), { temp: "6 5 1 0 6", dave: "6 1 5 0 6" }],
    ],
  },
  {
    title: "all earlier messages of a group count as read for a user who leaves and returns",
    lines: [
      [send(4)],
      [read("bob", 2)],
      [leave("bob"), { bob: "none" }],
      [send(2)],
      [join("bob"), { bob: "6 6 0 0 6" }],
      [send(1), { bob: "7 6 1 0 7" }],
      [read("bob", 0), { bob: "7 0 7 0 7" }],
    ],
  },
  {
    title: "a user who leaves a group and returns sees messages that the user had deleted",
    lines: [
      [send(2)],
      [sendFrom("bob")],
      [deleteFor("bob"), { bob: "3 3 0 3 -" }],
      [leave("bob")],
      [join("bob"), { bob: "3 3 0 0 3" }],
      [read("bob", 1), { bob: "3 1 2 0 3" }],
    ],
  },
  {
    title: "a user who loses one of two kinds of membership keeps the read position",
    lines: [
      [send(4)],
      [deleteFor("carol")],
      [join("carol", "temporary")],
      [leave("carol"), { carol: "4 4 0 4 -" }],
      [send(1), { carol: "5 4 1 4 5" }],
      [leave("carol", "temporary"), { carol: "none" }],
    ],
  },
  {
    title: "replacing the member list removes the read positions of users who are left out",
    lines: [
      [send(3)],
      [read("bob", 1)],
      [reset("alice", "bob"), { bob: "3 1 2 0 3", carol: "none" }],
      [reset("alice", "carol"), { bob: "none", carol: "3 3 0 0 3" }],
      [send(1), { carol: "4 3 1 0 4" }],
      [join("bob"), { bob: "4 4 0 0 4" }],
    ],
  },
  {
    title: "a large group has no unread messages and stores no positions",
    lines: [
      [flags({ large: true })],
      [send(3), { bob: "3 3 0 0 3" }],
      [read("bob", 1), { bob: "3 3 0 0 3" }],
      [unread("bob", 2), { bob: "3 3 0 0 3" }],
      [deleteFor("bob"), { bob: "3 3 0 0 3" }],
      [join("dave"), { dave: "3 3 0 0 3" }],
    ],
  },
  {
    title: "a group has no unread messages while it is large",
    lines: [
      [send(3)],
      [read("bob", 1), { bob: "3 1 2 0 3" }],
      [flags({ large: true }), { bob: "3 3 0 0 3" }],
      [send(1), { bob: "4 4 0 0 4" }],
      [read("bob", 3), { bob: "4 4 0 0 4" }],
      [flags({ large: false }), { bob: "4 1 3 0 4" }],
    ],
  },
  {
    title: "a message that is sent while a group is large moves the sender's read position",
    lines: [
      [sendFrom("bob")],
      [flags({ large: true })],
      [SWEEP],
      [sendFrom("carol")],
      [RESTART],
      [SWEEP],
      [flags({ large: false }), { bob: "2 1 1 0 2", carol: "2 2 0 0 2" }],
    ],
  },
  {
    title: "a message is unread, and may be the last message, until it expires",
    lines: [
      [send(1)],
      [send(2, { expireS: 10 })],
      [send(1, { expireS: 20 })],
      [sendWithoutDot(1, { expireS: 20 }), { bob: "5 0 4 0 5" }],
      [RESTART, { bob: "5 0 4 0 5" }],
      [passS(9.999), { bob: "5 0 4 0 5" }],
      [passS(0.001), { bob: "5 0 2 0 5" }],
      [unread("bob", 2), { bob: "5 0 2 0 5" }],
      [unread("bob", 1), { bob: "5 3 1 0 5" }],
      [passS(10), { bob: "5 3 0 0 1" }],
      [unread("bob", 5), { bob: "5 0 1 0 1" }],
    ],
  },
  {
    title: "a conversation whose messages have all expired is not listed",
    lines: [
      [send(2, { expireS: 5 }), { bob: "2 0 2 0 2" }],
      [passS(5), { bob: "2 0 0 0 -" }],
      [SWEEP, { bob: "2 0 0 0 -" }],
      [send(1), { bob: "3 0 1 0 3" }],
    ],
  },
  {
    title:
      "all messages without an expiry and the newest 1,000 messages with an expiry count as unread",
    lines: [
      [send(2)],
      [send(700, { expireS: 60 }), { bob: "702 0 702 0 702" }],
      [SWEEP],
      [send(800, { expireS: 60 })],
      [send(3), { bob: "1505 0 1005 0 1505" }],
      [unread("bob", 2000), { bob: "1505 0 1005 0 1505" }],
      [unread("bob", 1004), { bob: "1505 1 1004 0 1505" }],
      [unread("bob", 1003), { bob: "1505 502 1003 0 1505" }],
      [unread("bob", 5), { bob: "1505 1500 5 0 1505" }],
      [read("bob", 0), { bob: "1505 0 1005 0 1505" }],
      [SWEEP, { bob: "1505 0 1005 0 1505" }],
      [passS(60), { bob: "1505 0 5 0 1505" }],
    ],
  },
  {
    title: "messages beyond the limit of the channel do not count as unread",
    maxChannelMessages: 10,
    lines: [
      [send(20)],
      [send(4, { expireS: 1000 })],
      [sendWithoutDot(1)],
      [send(5, { expireS: 1000 })],
      [send(3), { bob: "33 0 32 0 33" }],
      [SWEEP, { bob: "33 0 9 0 33" }],
      [RESTART, { bob: "33 0 9 0 33" }],
      [read("bob", 5), { bob: "33 5 9 0 33" }],
      [unread("bob", 4), { bob: "33 29 4 0 33" }],
      [deleteFor("carol"), { carol: "33 33 0 33 -" }],
      [send(10)],
      [SWEEP, { bob: "43 29 10 0 43", carol: "43 33 10 33 43" }],
      [unread("bob", 100), { bob: "43 33 10 0 43" }],
    ],
  },
  {
    title: "messages older than the retention time are neither unread nor the last message",
    retentionS: 60,
    lines: [
      [send(2)],
      [passS(30)],
      [send(2, { expireS: 100 })],
      [send(1), { bob: "5 0 5 0 5" }],
      [passS(29.999), { bob: "5 0 5 0 5" }],
      [passS(0.001), { bob: "5 0 3 0 5" }],
      [unread("bob", 9), { bob: "5 2 3 0 5" }],
      [unread("bob", 1), { bob: "5 4 1 0 5" }],
      [read("bob", 0), { bob: "5 0 3 0 5" }],
      [SWEEP, { bob: "5 0 3 0 5" }],
      [passS(30), { bob: "5 0 0 0 -" }],
      [unread("bob", 2), { bob: "5 5 0 0 -" }],
    ],
  },
];
