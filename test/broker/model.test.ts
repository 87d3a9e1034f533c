// Names derived from the nouns: one key per conversation, each side's view of it, ids that carry
// their time.

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

t.test("a conversation has one key whoever speaks", async (t) => {
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

t.test("different pairs never share a key", async (t) => {
  const uids = ["a", "ab", "b", "1:a", "2:a", "a:b", "at"];
  const pairs = uids.flatMap((one, at) =>
    uids.slice(at).map((other) => channelKey(person(other), one)),
  );
  t.equal(new Set(pairs).size, pairs.length);
});

t.test("a group has one key for everybody, apart from persons", async (t) => {
  t.equal(channelKey(group("g"), "alice"), channelKey(group("g"), "bob"));
  t.not(channelKey(group("g"), "g"), channelKey(person("g"), "g"));
  t.not(userTopic("x"), groupTopic("x"));
});

t.test("each side of a conversation calls it by the other", async (t) => {
  const toBob = { channel: person("bob"), fromUid: "alice" } as Message;
  t.same(channelSeenBy("alice", toBob), person("bob"));
  t.same(channelSeenBy("bob", toBob), person("alice"));
  const toGroup = { channel: group("g"), fromUid: "alice" } as Message;
  t.same(channelSeenBy("bob", toGroup), group("g"));
  const toSelf = { channel: person("alice"), fromUid: "alice" } as Message;
  t.same(channelSeenBy("alice", toSelf), person("alice"));
});

t.test("expire counts seconds from acceptance, 0 means never", async (t) => {
  t.equal(expiresAtMs({ timestampMs: 5, expireS: 0 }), Infinity);
  t.equal(expiresAtMs({ timestampMs: 5, expireS: 2 }), 2005);
});

t.test("a message id grows with time and gives it back", async (t) => {
  const at = Date.UTC(2026, 5, 1, 12, 0, 0, 123);
  t.equal(messageTimeMs(firstMessageId(at)), at);
  t.equal(messageTimeMs(firstMessageId(at) + 4095), at);
  t.equal(messageTimeMs(firstMessageId(at) + 4096), at + 1);
  t.ok(firstMessageId(at + 1) > firstMessageId(at) + 4095);
});

t.test("message ids stay below 2^53 until 2090, and above 0", async (t) => {
  t.ok(Number.isSafeInteger(firstMessageId(Date.UTC(2090, 0)) + 4095));
  t.ok(firstMessageId(0) > 0, "a clock before the epoch");
});
