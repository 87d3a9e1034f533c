// Where users stand in conversations, as a table [ports: ConversationStore]: what happens, and how
// users stand then. Data only; `store-unread.ts` asks every driver.

import type { ChannelFlags } from "../../src/broker/model.ts";
import type { Membership } from "../../src/broker/ports.ts";

/** Something that happens, in the case's group unless it names another user. */
export type Move =
  | {
      readonly kind: "send";
      readonly count: number;
      readonly from: string;
      /** The other user; absent: the group. */
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
 * By user (`bob`, or `bob with alice` for their personal channel): headSeq, readSeq, unread,
 * deletedSeq and the seq of the last message shown, `-` if there is none, and lists leave the
 * conversation out. `none`: no conversation, no member.
 */
type Standings = Readonly<Record<string, string>>;

export interface UnreadCase {
  readonly what: string;
  /** How many messages the channel keeps, and for how long; absent: all, for ever. */
  readonly maxChannelMessages?: number;
  readonly retentionS?: number;
  readonly lines: readonly (readonly [Move, Standings?])[];
}

type Send = Extract<Move, { readonly kind: "send" }>;
const send = (count: number, over: Partial<Send> = {}): Move => ({
  ...{ kind: "send", count, from: "alice", redDot: true, expireS: 0 },
  noPersist: false,
  ...over,
});
const silent = (count: number, over: Partial<Send> = {}) => send(count, { redDot: false, ...over });
const by = (from: string, over: Partial<Send> = {}) => send(1, { from, ...over });
const read = (uid: string, seq: number): Move => ({ kind: "read", uid, seq });
const unread = (uid: string, count: number): Move => ({
  ...{ kind: "unread", uid, unread: count },
});
const remove = (uid: string): Move => ({ kind: "delete", uid });
const join = (uid: string, membership: Membership = "permanent"): Move => ({
  ...{ kind: "join", uid, membership },
});
const leave = (uid: string, membership: Membership = "permanent"): Move => ({
  ...{ kind: "leave", uid, membership },
});
const reset = (...uids: readonly string[]): Move => ({ kind: "reset", uids });
const flags = (some: ChannelFlags): Move => ({ kind: "flags", flags: some });
const passS = (seconds: number): Move => ({ kind: "pass", ms: seconds * 1000 });
const STREAM: Move = { kind: "stream" };
const COMMAND: Move = { kind: "command" };
const SWEEP: Move = { kind: "sweep" };
const RESTART: Move = { kind: "restart" };

/**
 * Each begins with an empty group of alice, bob and carol; all is looked at again behind a restart.
 */
export const UNREAD_CASES: readonly UnreadCase[] = [
  {
    what: "messages with a red dot behind the position are unread",
    lines: [
      [send(3), { bob: "3 0 3 0 3" }],
      [silent(2), { bob: "5 0 3 0 5" }],
      [send(1), { bob: "6 0 4 0 6", carol: "6 0 4 0 6" }],
      [RESTART, { bob: "6 0 4 0 6" }],
      [send(2)],
      [silent(1), { bob: "9 0 6 0 9" }],
      [read("bob", 4), { bob: "9 4 3 0 9" }],
    ],
  },
  {
    what: "a conversation without a message stands at 0 and is not changed",
    lines: [
      [read("bob", 5), { bob: "0 0 0 0 -", carol: "0 0 0 0 -" }],
      [unread("bob", 5), { bob: "0 0 0 0 -" }],
      [remove("bob"), { bob: "0 0 0 0 -" }],
      [send(1), { bob: "1 0 1 0 1" }],
    ],
  },
  {
    what: "an unstored message and a command are in no conversation, a stream is",
    lines: [
      [send(1, { noPersist: true }), { bob: "0 0 0 0 -" }],
      [COMMAND, { bob: "0 0 0 0 -" }],
      [STREAM, { bob: "1 0 1 0 1", alice: "1 1 0 0 1" }],
      [send(1, { noPersist: true, from: "bob" }), { bob: "1 0 1 0 1" }],
    ],
  },
  {
    what: "an own message reads all before it, for its sender",
    lines: [
      [send(3)],
      [by("bob"), { bob: "4 4 0 0 4" }],
      [send(2), { bob: "6 4 2 0 6", alice: "6 6 0 0 6", carol: "6 0 6 0 6" }],
      [RESTART, { bob: "6 4 2 0 6" }],
      [by("bob"), { bob: "7 7 0 0 7", carol: "7 0 7 0 7" }],
      [by("bob", { redDot: false }), { bob: "8 8 0 0 8", carol: "8 0 7 0 8" }],
    ],
  },
  {
    what: "an own message that expires reads all before it, too",
    lines: [
      [send(2)],
      [by("bob", { expireS: 10 }), { bob: "3 3 0 0 3", carol: "3 0 3 0 3" }],
      [passS(10), { bob: "3 3 0 0 2", carol: "3 0 2 0 2" }],
    ],
  },
  {
    what: "each side of a personal channel has its own count",
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
    what: "what users write to themselves they have read",
    lines: [
      [send(2, { from: "bob", to: "bob" }), { "bob with bob": "2 2 0 0 2" }],
      [{ kind: "read", uid: "bob", with: "bob", seq: 0 }, { "bob with bob": "2 0 2 0 2" }],
    ],
  },
  {
    what: "the position moves both ways and is clipped to the channel's seqs",
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
    what: "a position put back stays there until the next own message",
    lines: [
      [send(3)],
      [by("bob")],
      [read("bob", 1), { bob: "4 1 3 0 4" }],
      [send(1), { bob: "5 1 4 0 5" }],
      [RESTART, { bob: "5 1 4 0 5" }],
      [by("bob"), { bob: "6 6 0 0 6" }],
      [send(1), { bob: "7 6 1 0 7" }],
    ],
  },
  {
    what: "a position put forward stays there, and an own message takes it on",
    lines: [
      [by("bob")],
      [send(4)],
      [read("bob", 3), { bob: "5 3 2 0 5" }],
      [send(1), { bob: "6 3 3 0 6" }],
      [by("bob"), { bob: "7 7 0 0 7" }],
      [read("bob", 7), { bob: "7 7 0 0 7" }],
      [send(1), { bob: "8 7 1 0 8" }],
    ],
  },
  {
    what: "so many unread as asked for, as far as there are, from the newest on",
    lines: [
      [send(3)],
      [silent(2)],
      [send(2)],
      [silent(1)],
      [unread("bob", 1), { bob: "8 6 1 0 8" }],
      [unread("bob", 2), { bob: "8 5 2 0 8" }],
      [unread("bob", 3), { bob: "8 2 3 0 8" }],
      [unread("bob", 1000), { bob: "8 0 5 0 8" }],
      [unread("bob", 0), { bob: "8 8 0 0 8" }],
    ],
  },
  {
    what: "of a deleted conversation nothing earlier is shown again",
    lines: [
      [send(3)],
      [remove("bob"), { bob: "3 3 0 3 -", carol: "3 0 3 0 3" }],
      [read("bob", 1), { bob: "3 3 0 3 -" }],
      [unread("bob", 2), { bob: "3 3 0 3 -" }],
      [RESTART, { bob: "3 3 0 3 -" }],
      [send(2), { bob: "5 3 2 3 5" }],
      [unread("bob", 9), { bob: "5 3 2 3 5" }],
      [read("bob", 0), { bob: "5 3 2 3 5" }],
      [by("bob"), { bob: "6 6 0 3 6" }],
      [unread("bob", 9), { bob: "6 3 3 3 6" }],
      [remove("bob"), { bob: "6 6 0 6 -" }],
    ],
  },
  {
    what: "only members have the conversation of a group that is there",
    lines: [
      [send(1), { dave: "none" }],
      [read("dave", 1), { dave: "none" }],
      [flags({ disband: true }), { bob: "none" }],
      [read("bob", 1), { bob: "none" }],
    ],
  },
  {
    what: "a user who joins has read what was there",
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
    what: "leaving forgets the position; a user who comes back has read all",
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
    what: "leaving forgets own messages and what was deleted",
    lines: [
      [send(2)],
      [by("bob")],
      [remove("bob"), { bob: "3 3 0 3 -" }],
      [leave("bob")],
      [join("bob"), { bob: "3 3 0 0 3" }],
      [read("bob", 1), { bob: "3 1 2 0 3" }],
    ],
  },
  {
    what: "a user who holds the other kind of membership stays and keeps all",
    lines: [
      [send(4)],
      [remove("carol")],
      [join("carol", "temporary")],
      [leave("carol"), { carol: "4 4 0 4 -" }],
      [send(1), { carol: "5 4 1 4 5" }],
      [leave("carol", "temporary"), { carol: "none" }],
    ],
  },
  {
    what: "a list that is replaced forgets those it leaves out",
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
    what: "a large group has no unread and keeps no positions",
    lines: [
      [flags({ large: true })],
      [send(3), { bob: "3 3 0 0 3" }],
      [read("bob", 1), { bob: "3 3 0 0 3" }],
      [unread("bob", 2), { bob: "3 3 0 0 3" }],
      [remove("bob"), { bob: "3 3 0 0 3" }],
      [join("dave"), { dave: "3 3 0 0 3" }],
    ],
  },
  {
    what: "a group that becomes large has no unread while it is",
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
    what: "own messages of a group count also when it was large meanwhile",
    lines: [
      [by("bob")],
      [flags({ large: true })],
      [SWEEP],
      [by("carol")],
      [RESTART],
      [SWEEP],
      [flags({ large: false }), { bob: "2 1 1 0 2", carol: "2 2 0 0 2" }],
    ],
  },
  {
    what: "a message that expires is unread and last until then",
    lines: [
      [send(1)],
      [send(2, { expireS: 10 })],
      [send(1, { expireS: 20 })],
      [silent(1, { expireS: 20 }), { bob: "5 0 4 0 5" }],
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
    what: "a conversation all of which expired leaves the list",
    lines: [
      [send(2, { expireS: 5 }), { bob: "2 0 2 0 2" }],
      [passS(5), { bob: "2 0 0 0 -" }],
      [SWEEP, { bob: "2 0 0 0 -" }],
      [send(1), { bob: "3 0 1 0 3" }],
    ],
  },
  {
    what: "of messages that expire the newest 1000 count, beside all others",
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
    what: "what a channel does not keep is not unread",
    maxChannelMessages: 10,
    lines: [
      [send(20)],
      [send(4, { expireS: 1000 })],
      [silent(1)],
      [send(5, { expireS: 1000 })],
      [send(3), { bob: "33 0 32 0 33" }],
      [SWEEP, { bob: "33 0 9 0 33" }],
      [RESTART, { bob: "33 0 9 0 33" }],
      [read("bob", 5), { bob: "33 5 9 0 33" }],
      [unread("bob", 4), { bob: "33 29 4 0 33" }],
      [remove("carol"), { carol: "33 33 0 33 -" }],
      [send(10)],
      [SWEEP, { bob: "43 29 10 0 43", carol: "43 33 10 33 43" }],
      [unread("bob", 100), { bob: "43 33 10 0 43" }],
    ],
  },
  {
    what: "what is past retention is neither unread nor last",
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
