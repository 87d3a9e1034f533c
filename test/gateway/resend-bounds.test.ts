// The exact bounds of the messages that are sent again to a client that does not acknowledge them:
// bytes of messages, and unread bytes. The tests use a session, because a socket has buffers of
// unknown size.

import type { Message } from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";
import { seeded } from "./random.ts";
import { type Joiner, World } from "./world.ts";

const AFTER_MS = 100;
const MIB = 1_048_576;
/** Maximum number of unread bytes of a client to which messages are sent again. */
const MAX_UNREAD_BYTES = 65_536;

/** Returns a session that has been pushed messages with payloads of these sizes. */
function pushed(sizes: readonly number[], clock = Date.now) {
  const world = new World(seeded(1));
  const limits = { acknowledges: true, resendAfterMs: AFTER_MS };
  const joiner = world.session({ uid: "alice", ...limits, clock });
  t.teardown(() => joiner.session.disconnected("goodbye"));
  push(joiner, sizes);
  return joiner;
}

function push(
  { session, connection }: Joiner,
  sizes: readonly number[],
  over: Partial<Message> = {},
): void {
  const first = connection.frames.length + 1;
  for (const [at, size] of sizes.entries())
    session.push({
      ...{ kind: "message", channel: { id: "bob", type: 1 } },
      message: { ...messageOf(first + at, size), ...over },
    });
}

function messageOf(number: number, size: number): Message {
  return {
    ...{ messageId: number, messageSeq: number, key: "1:alice@bob" },
    ...{ channel: { id: "alice", type: 1 }, fromUid: "bob", clientMsgNo: `n${number}` },
    ...{ timestampMs: Date.now(), header: { noPersist: false, redDot: true }, expireS: 0 },
    ...{ streamNo: undefined, tagKey: undefined, stream: undefined },
    payload: new Uint8Array(size),
  };
}

/** Returns the numbers of the messages of the first round in which messages are sent again. */
async function sentAgain({ connection }: Joiner): Promise<readonly string[]> {
  const before = connection.frames.length;
  while (connection.frames.length === before)
    await new Promise((resolve) => setTimeout(resolve, AFTER_MS / 10));
  return connection.messageNos.slice(before);
}

t.test("unacknowledged messages of exactly 1 MiB in total are all sent again", async (t) => {
  t.same(await sentAgain(pushed([MIB / 2, MIB / 2])), ["n1", "n2"]);
});

t.test(
  "the oldest message is not sent again if the unacknowledged messages exceed 1 MiB in total by one byte",
  async (t) => {
    t.same(await sentAgain(pushed([1, MIB / 2, MIB / 2])), ["n2", "n3"]);
    t.same(await sentAgain(pushed([MIB + 1, 10])), ["n2"], "a larger message is not sent again");
  },
);

t.test("an acknowledged message does not count towards the resend limit of 1 MiB", async (t) => {
  const alice = pushed([MIB / 2, MIB / 2]);
  alice.session.acknowledged(1);
  push(alice, [MIB / 2]);
  t.same(await sentAgain(alice), ["n2", "n3"]);
});

t.test(
  "messages that the resend limit of 1 MiB has excluded no longer count towards that limit",
  async (t) => {
    t.same(await sentAgain(pushed([MIB, MIB, MIB / 2, MIB / 2])), ["n3", "n4"]);
  },
);

t.test(
  "unacknowledged messages are sent again to a client with 65,536 unread bytes, but not to a client with one byte more",
  async (t) => {
    const [lagging, reading] = [pushed([10]), pushed([10])]; // the timer of `lagging` runs first
    reading.connection.unread = MAX_UNREAD_BYTES;
    lagging.connection.unread = MAX_UNREAD_BYTES + 1;
    t.same(await sentAgain(reading), ["n1"]);
    t.same(lagging.connection.messageNos, ["n1"], "only the first push was sent");
    lagging.connection.unread = MAX_UNREAD_BYTES;
    t.same(await sentAgain(lagging), ["n1"], "the message is sent again after the client has read");
  },
);

t.test("an unacknowledged message that has expired is not sent again", async (t) => {
  const alice = pushed([10]);
  push(alice, [10], { expireS: 60, timestampMs: Date.now() - 60_000 });
  push(alice, [10], { expireS: 60 });
  t.same(await sentAgain(alice), ["n1", "n3"]);
});

t.test(
  "the store's clock, not the node's, determines whether an unacknowledged message has expired",
  async (t) => {
    const storeMs = Date.now() - 3_600_000;
    const alice = pushed([], () => storeMs);
    push(alice, [10, 10], { expireS: 60, timestampMs: storeMs });
    push(alice, [10], { expireS: 60, timestampMs: storeMs - 60_000 });
    t.same(await sentAgain(alice), ["n1", "n2"], "the clock of the node is an hour ahead");
  },
);
