// Keys and names of channels, expiry times, and message ids.

import {
  type ChannelRef,
  channelKey,
  channelSeenBy,
  expiresAtMs,
  firstMessageId,
  GROUP_CHANNEL,
  groupTopic,
  type Message,
  messageTimeMs,
  PERSON_CHANNEL,
  userTopic,
} from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";

const group = (id: string): ChannelRef => ({ id, type: GROUP_CHANNEL });
const person = (id: string): ChannelRef => ({ id, type: PERSON_CHANNEL });

t.test("a personal channel has the same key for both users", async (t) => {
  for (const [a, b] of [
    ["alice", "bob"],
    ["B", "a"],
    ["用户", "user"],
    ["10", "9"],
  ] as const)
    t.equal(channelKey(person(b), a), channelKey(person(a), b));
  t.equal(channelKey(person("bob"), "alice"), "1:alice@bob");
  t.equal(channelKey(person("me"), "me"), "1:me@me");
});

t.test("the personal channels of different pairs of users have different keys", async (t) => {
  const uids = ["a", "ab", "b", "1:a", "2:a", "a:b", "at"];
  const pairs = uids.flatMap((first, at) =>
    uids.slice(at).map((second) => channelKey(person(second), first)),
  );
  t.equal(new Set(pairs).size, pairs.length);
});

t.test(
  "a group has the same channel key for all users, and a personal channel with the same id has a different key",
  async (t) => {
    t.equal(channelKey(group("g"), "alice"), channelKey(group("g"), "bob"));
    t.not(channelKey(group("g"), "g"), channelKey(person("g"), "g"));
    t.not(userTopic("x"), groupTopic("x"));
  },
);

t.test(
  "for each user of a personal channel, the channel's id is the uid of the other user",
  async (t) => {
    const toBob = { channel: person("bob"), fromUid: "alice" } as Message;
    t.same(channelSeenBy("alice", toBob), person("bob"));
    t.same(channelSeenBy("bob", toBob), person("alice"));
    const toGroup = { channel: group("g"), fromUid: "alice" } as Message;
    t.same(channelSeenBy("bob", toGroup), group("g"));
    const toSelf = { channel: person("alice"), fromUid: "alice" } as Message;
    t.same(channelSeenBy("alice", toSelf), person("alice"));
  },
);

t.test(
  "a message expires `expire` seconds after it was accepted, or never if `expire` is 0",
  async (t) => {
    t.equal(expiresAtMs({ timestampMs: 5, expireS: 0 }), Infinity);
    t.equal(expiresAtMs({ timestampMs: 5, expireS: 2 }), 2005);
  },
);

t.test("message ids grow with time, and the time can be read from the id", async (t) => {
  const at = Date.UTC(2026, 5, 1, 12, 0, 0, 123);
  t.equal(messageTimeMs(firstMessageId(at)), at);
  t.equal(messageTimeMs(firstMessageId(at) + 4095), at);
  t.equal(messageTimeMs(firstMessageId(at) + 4096), at + 1);
  t.ok(firstMessageId(at + 1) > firstMessageId(at) + 4095);
});

t.test("message ids are positive and stay below 2^53 until 2090", async (t) => {
  t.ok(Number.isSafeInteger(firstMessageId(Date.UTC(2090, 0)) + 4095));
  t.ok(firstMessageId(0) > 0, "a clock before the epoch gives a positive id");
});
