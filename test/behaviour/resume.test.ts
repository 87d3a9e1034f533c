// Resuming: a client names its last seq of each channel and receives the later messages without a
// gap or repeat, and then every live message.

import type { Test } from "tap";
import type { ChannelRef } from "../../src/broker/model.ts";
import type { Push } from "../../src/protocol/protocol.ts";
import type { NativeClient } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import {
  codeOf,
  group,
  person,
  range,
  receivedTexts,
  seqs,
  startWorld,
  untilReceived,
  wire,
} from "./world.ts";

/** Maximum number of messages in one MESSAGES frame. */
const RUN = 200;

const world = await startWorld(t);

/**
 * Sends "<channel id> 1", "<channel id> 2" and so on into the channel over HTTP, one after the
 * other.
 */
async function fill(from: string, channel: ChannelRef, count: number) {
  for (const n of range(1, count)) {
    const { status } = await world.send(from, channel, `${channel.id} ${n}`);
    if (status !== 200) throw new Error(`refused with ${status}`);
  }
}

function runsOf(client: NativeClient, channel: ChannelRef) {
  return client.pushes.filter(
    (push): push is Extract<Push, { kind: "messages" }> =>
      push.kind === "messages" && push.channel.id === channel.id,
  );
}

/** Returns the seqs of the channel's messages in order of arrival, resumed and live. */
function seqsIn(client: NativeClient, channel: ChannelRef): readonly number[] {
  return client.pushes.flatMap((push) => {
    if (push.kind !== "message" && push.kind !== "messages") return [];
    if (push.channel.id !== channel.id) return [];
    return push.kind === "message" ? [push.message.messageSeq] : seqs(push.messages);
  });
}

// Covers [feature: resume]
t.test(
  "a client that resumes a channel gets the messages after lastSeq in MESSAGES frames, and then live messages",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    await fill(alice, channel, 5);
    const resume = [{ channel, lastSeq: 2 }];
    const client = await world.join(t, bob, { resume });
    const result = { channel, status: "ok", headSeq: 5 };
    t.same(client.connack.resume, [result]);
    await untilReceived(client, 3);
    await world.send(alice, channel, "live");
    await untilReceived(client, 4);
    t.same(seqsIn(client, channel), [3, 4, 5, 6]);
    t.match(runsOf(client, channel), [{ afterSeq: 2, throughSeq: 5 }]);
    t.equal(client.pushes.at(-1)?.kind, "message");
  },
);

// Covers [feature: resume]
t.test(
  "a connect can resume several channels from different positions, and its results are in the order of the request",
  async (t) => {
    const [alice, bob, carol] = [world.name("alice"), world.name("bob"), world.name("carol")];
    const first = await world.newGroup([alice, bob]);
    const second = await world.newGroup([alice, bob]);
    await fill(alice, first, 4);
    await fill(alice, second, 3);
    await fill(alice, person(bob), 2);
    await fill(bob, person(carol), 2);
    const resume = [
      { channel: second, lastSeq: 1 },
      { channel: person(alice), lastSeq: 0 },
      { channel: first, lastSeq: 4 },
      { channel: person(carol), lastSeq: 1 },
    ];
    const client = await world.join(t, bob, { resume });
    const heads = client.connack.resume.map(({ channel, status, headSeq }) => [
      channel.id,
      status,
      headSeq,
    ]);
    t.same(heads, [
      [second.id, "ok", 3],
      [alice, "ok", 2],
      [first.id, "ok", 4],
      [carol, "ok", 2],
    ]);
    await untilReceived(client, 5);
    t.same(seqsIn(client, second), [2, 3]);
    t.same(seqsIn(client, person(alice)), [1, 2]);
    t.same(seqsIn(client, person(carol)), [2], "a user's own messages are included");
    t.same(runsOf(client, first), [], "a channel at its head has no MESSAGES frame");
  },
);

// Covers [feature: resume]
t.test(
  "a client gets only live messages from channels that it does not resume or that are empty when it resumes",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    await fill(alice, channel, 2);
    const empty = await world.newGroup([alice, bob]);
    const resume = [{ channel: empty, lastSeq: 0 }];
    const client = await world.join(t, bob, { resume });
    t.match(client.connack.resume, [{ status: "ok", headSeq: 0 }]);
    t.same(await receivedTexts(client), []);
    for (const target of [channel, empty, person(bob)]) await world.send(alice, target, "live");
    t.same(await untilReceived(client, 3), ["live", "live", "live"]);
  },
);

// Covers [feature: resume denied]
t.test(
  "the resume of a channel that the user may not read is denied, and the other channels are resumed",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const foreign = await world.newGroup([alice]);
    const leftGroup = await world.newGroup([alice, bob]);
    const joined = await world.newGroup([alice, bob]);
    const disbanded = await world.newGroup([alice, bob]);
    for (const channel of [foreign, leftGroup, joined, disbanded]) await fill(alice, channel, 2);
    const body = { ...wire(leftGroup), subscribers: [bob] };
    await world.ok("/channel/subscriber_remove", body);
    await world.ok("/channel/info", { ...wire(disbanded), disband: 1 });
    const none = group(world.name("none"));
    const named = [foreign, leftGroup, joined, disbanded, none];
    const resume = named.map((channel) => ({ channel, lastSeq: 0 }));
    const client = await world.join(t, bob, { resume });
    const statuses = client.connack.resume.map(({ status, headSeq }) => [status, headSeq]);
    const denied = ["denied", 0];
    t.same(statuses, [denied, denied, ["ok", 2], denied, denied]);
    await untilReceived(client, 2);
    await world.send(alice, foreign, "secret");
    t.same(await untilReceived(client, 2), [`${joined.id} 1`, `${joined.id} 2`]);
  },
);

// Covers [feature: resume]
t.test(
  "a channel named twice in a resume is resumed once, from the second of its positions",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    await fill(alice, channel, 4);
    const resume = [
      { channel, lastSeq: 0 },
      { channel, lastSeq: 2 },
    ];
    const client = await world.join(t, bob, { resume });
    await untilReceived(client, 2);
    await world.send(alice, channel, "live");
    await untilReceived(client, 3);
    t.same(seqsIn(client, channel), [3, 4, 5]);
  },
);

// Covers [feature: resume large backlog]
t.test(
  "a large backlog is pushed in several consecutive MESSAGES frames, followed by live messages",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    const writer = await world.join(t, alice);
    const send = (n: number) => writer.send(channel, `${n}`);
    await Promise.all(range(1, 800).map(send));
    await fill(alice, person(bob), 220); // over HTTP, because a socket may have at most 1000 sends in flight
    const resume = [
      { channel, lastSeq: 10 },
      { channel: person(alice), lastSeq: 0 },
    ];
    const client = await world.join(t, bob, { resume });
    await Promise.all(range(801, 900).map(send));
    await untilReceived(client, 890 + 220);
    t.same(seqsIn(client, channel), range(11, 900));
    t.same(seqsIn(client, person(alice)), range(1, 220));
    for (const target of [channel, person(alice)]) {
      const runs = runsOf(client, target);
      t.ok(runs.length > 1);
      let at = target === channel ? 10 : 0;
      for (const run of runs) {
        t.equal(run.afterSeq, at);
        t.ok(run.messages.length <= RUN);
        at = run.throughSeq;
      }
    }
  },
);

// Covers [feature: resume; decisions: Sequence]
t.test(
  "a client that reconnects many times while others send gets every message once, in the order of the seqs",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    await world.register(bob);
    const writer = await world.join(t, alice);
    const channels = [channel, person(alice)];
    const last = new Map(channels.map((item) => [item.id, 0]));
    let isDone = false;
    const writing = (async () => {
      for (const n of range(1, 150)) {
        await Promise.all([writer.send(channel, `${n}`), writer.send(person(bob), `${n}`)]);
      }
      isDone = true;
    })();
    for (let visits = 0; !isDone || visits < 3; visits++) await visit(t, bob, { last, channels });
    await writing;
    await visit(t, bob, { last, channels, until: 150 });
    t.same([...last.values()], [150, 150]);
  },
);

/**
 * Connects and resumes from `last`, asserts that no message is missing, stores the new positions in
 * `last` and disconnects.
 */
async function visit(
  t: Test,
  uid: string,
  state: {
    readonly last: Map<string, number>;
    readonly channels: readonly ChannelRef[];
    readonly until?: number;
  },
): Promise<void> {
  const { last, channels, until = 0 } = state;
  const points = channels.map((channel) => ({
    channel,
    lastSeq: last.get(channel.id) ?? 0,
  }));
  const client = await world.connect(t, uid, { resume: points });
  await client.waitFor(
    () =>
      points.every(({ channel, lastSeq }, at) => {
        const { headSeq = 0 } = client.connack.resume[at] ?? {};
        const newest = seqsIn(client, channel).at(-1) ?? lastSeq;
        return newest >= Math.max(headSeq, until);
      }),
    "the channels up to their heads",
  );
  for (const { channel, lastSeq } of points) {
    const seen = seqsIn(client, channel);
    const gapless = range(lastSeq + 1, lastSeq + seen.length);
    if (seen.length > 0) t.same(seen, gapless, `${channel.id} has no gap`);
    last.set(channel.id, lastSeq + seen.length);
  }
  await client.close();
}

// Covers [feature: resume]
t.test(
  "a client can resume a channel that its user joined while offline, and then gets live messages",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice]);
    await fill(alice, channel, 3);
    const device = await world.join(t, bob);
    await device.close();
    const body = { ...wire(channel), subscribers: [bob] };
    await world.ok("/channel/subscriber_add", body);
    const resume = [{ channel, lastSeq: 1 }];
    const client = await world.connect(t, bob, { resume });
    await untilReceived(client, 2);
    await world.send(alice, channel, "live");
    await untilReceived(client, 3);
    t.same(seqsIn(client, channel), [2, 3, 4]);
  },
);

// Covers [feature: resume]
t.test("a client can resume after a restart of the node", async (t) => {
  const before = await startWorld(t);
  const channel = await before.newGroup(["alice", "bob"]);
  const bob = await before.join(t, "bob");
  await before.send("alice", channel, "1");
  await before.send("alice", channel, "2");
  t.same(await untilReceived(bob, 2), ["1", "2"]);
  await before.close();
  t.match(await bob.closed, { code: 4000 }, "the client is asked to reconnect");
  const after = await startWorld(t, {}, before.dataPath);
  await after.send("alice", channel, "3");
  const resume = [{ channel, lastSeq: 1 }];
  const resumed = await after.connect(t, "bob", { resume });
  t.same(await untilReceived(resumed, 2), ["2", "3"]);
});

// Covers [feature: resume; decisions: Limits]
t.test("a resume of more channels than client.maxResumeChannels is refused", async (t) => {
  const small = await startWorld(t, {
    JINDOU_CLIENT_MAX_RESUME_CHANNELS: "2",
  });
  const resume = ["a", "b", "c"].map((uid) => ({
    channel: person(uid),
    lastSeq: 0,
  }));
  const refused = small.join(t, "bob", { resume });
  t.equal(await codeOf(refused), "too_large");
  const two = small.join(t, "bob", { resume: resume.slice(1) });
  t.equal(await codeOf(two), "ok");
});

t.test(
  "live messages of a group that is not resumed are each pushed once to a session that is resuming a long conversation",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    await fill(alice, person(bob), 300);
    const resume = [{ channel: person(alice), lastSeq: 0 }];
    const client = await world.join(t, bob, { resume });
    for (const n of range(1, 5)) await world.send(alice, channel, `live ${n}`);
    await untilReceived(client, 305);
    t.same(seqsIn(client, channel), range(1, 5));
    t.same(seqsIn(client, person(alice)), range(1, 300));
  },
);

t.test("a client whose lastSeq is above the channel's head gets new messages", async (t) => {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  const channel = await world.newGroup([alice, bob]);
  await fill(alice, channel, 2);
  const resume = [{ channel, lastSeq: 50 }];
  const client = await world.join(t, bob, { resume });
  await world.send(alice, channel, "new");
  await untilReceived(client, 1);
  t.same(seqsIn(client, channel), [3]);
});
