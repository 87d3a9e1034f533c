// Delivery of events: which sessions receive an event, how often it is encoded, which events are
// withheld from a lagging session, and what ends a lagging session. Also tests other pushes and
// replies to a user's sessions.

import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import {
  type ChannelEvent,
  type ChannelRef,
  type Conversation,
  channelKey,
  STREAM_CONTENT,
} from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";
import { operator } from "./operation-world.ts";
import { seeded } from "./random.ts";
import { memberEvent } from "./shared-server.ts";
import { streamView } from "./stream-view.ts";
import { group, type Joiner, person, World } from "./world.ts";

/** Creates live sessions, one per entry `uid:format`, all members of group g. */
async function liveWorld(names: readonly string[]): Promise<{
  readonly world: World;
  readonly sessions: readonly Joiner[];
}> {
  const world = new World(seeded(3));
  const all = names.map((name) => name.split(":"));
  for (const [uid = ""] of all) world.server.setMember("g", uid, true);
  const sessions: Joiner[] = [];
  for (const [uid = "", format = "a"] of all) sessions.push(await world.live({ uid, format }));
  return { world, sessions };
}

function custom(channel: ChannelRef, data: string): ChannelEvent {
  const fromUid = "bob";
  return {
    ...{ key: channelKey(channel, fromUid), channel, fromUid, data },
    ...{ clientMsgNo: "c", eventId: data, type: "x", timestampMs: 0 },
    stream: undefined,
  };
}

const eventsOf = ({ connection }: Joiner): readonly ChannelEvent[] =>
  connection.seen.flatMap((one) => (one.kind === "event" ? [one.event] : []));

function stopReading(world: World, { connection, session }: Joiner): void {
  connection.unread = 1000;
  world.catchUps.lag(session);
}

function readOn({ connection, session }: Joiner): void {
  connection.unread = 0;
  session.drained();
}

t.test("an event of a group is encoded once per wire format", async (t) => {
  const { world, sessions } = await liveWorld(["a1:a", "a2:a", "b1:b", "a3:a"]);
  world.server.publishEvent(custom(group("g"), "hello"));
  await world.server.settle();
  for (const joiner of sessions) {
    t.same(
      eventsOf(joiner).map(({ data }) => data),
      ["hello"],
    );
    t.match(joiner.connection.seen.at(-1), { channel: group("g") });
  }
  const encoded = sessions.map(({ codec }) => codec.encodedPushes);
  t.equal(
    encoded.reduce((sum, one) => sum + one, 0),
    2,
  );
});

t.test(
  "an event of a personal channel reaches each of its users under the uid of the other user",
  async (t) => {
    const names = ["alice", "alice", "bob", "carol"];
    const { world, sessions } = await liveWorld(names);
    world.server.publishEvent(custom(person("alice"), "hello"));
    await world.server.settle();
    const channels = sessions.map(({ connection }) =>
      connection.seen.map((one) => "channel" in one && one.channel.id),
    );
    t.same(channels, [["bob"], ["bob"], ["alice"], []]);
  },
);

t.test("a user who left a group receives no more of its events", async (t) => {
  const { world, sessions } = await liveWorld(["alice", "carol"]);
  const [alice, carol] = sessions;
  if (alice === undefined || carol === undefined) throw new Error("the world has no live session");
  stopReading(world, carol);
  world.server.publishEvent(custom(group("g"), "1"));
  await world.server.settle();
  for (const uid of ["alice", "carol"]) world.server.setMember("g", uid, false);
  await world.server.settle();
  world.server.publishEvent(custom(group("g"), "2"));
  readOn(carol);
  await world.server.settle();
  t.equal(eventsOf(alice).length, 1);
  t.same(eventsOf(carol), [], "a withheld event is not pushed after the user left the group");
  t.equal(carol.connection.topics.size, 0);
});

t.test(
  "a lagging session gets missed stream content as one event, at the place of the first missed content",
  async (t) => {
    const { world, sessions } = await liveWorld(["alice", "carol"]);
    const [alice, carol] = sessions;
    if (alice === undefined || carol === undefined)
      throw new Error("the world has no live session");
    const { streams } = world.server;
    const key = channelKey(group("g"), "bob");
    streams.start({ channel: group("g"), fromUid: "bob" });
    streams.content(key, "one ");
    await world.server.settle();
    stopReading(world, alice);
    world.server.publishEvent(custom(group("g"), "before"));
    for (const word of ["two ", "three ", "four "]) streams.content(key, word);
    world.server.publishEvent(custom(group("g"), "between"));
    streams.content(key, "five");
    await world.server.settle();
    t.equal(eventsOf(alice).length, 2, "no event is pushed while the session lags");
    t.equal(eventsOf(carol).length, 8, "other sessions get every event at once");
    readOn(alice);
    await world.server.settle();
    t.match(eventsOf(alice).slice(2), [
      { data: "before" },
      {
        type: STREAM_CONTENT,
        data: "two three four five",
        stream: { index: 2, nextIndex: 6, textOffset: 4, state: "active" },
      },
      { data: "between" },
    ]);
    streams.end(key);
    await world.server.settle();
    t.equal(eventsOf(alice).length, 6, "later events are pushed live");
  },
);

t.test(
  "a lagging session is closed as a slow reader if its withheld events exceed maxHeldBytes",
  async (t) => {
    const { world } = await liveWorld(["carol"]);
    world.server.setMember("g", "alice", true);
    const alice = await world.live({ uid: "alice", maxHeldBytes: 5000 });
    const publish = async (count: number): Promise<void> => {
      for (let at = 0; at < count; at++)
        world.server.publishEvent(custom(group("g"), "x".repeat(100)));
      await world.server.settle();
    };
    for (let round = 0; round < 5; round++) {
      stopReading(world, alice);
      await publish(10);
      readOn(alice);
      await world.server.settle();
    }
    t.equal(eventsOf(alice).length, 50, "the limit applies to the events withheld at one time");
    stopReading(world, alice);
    await publish(20);
    t.equal(alice.session.ended, "slow_reader");
    t.equal(alice.connection.endedWith, CLOSE_REASONS.slow_reader.code);
    world.disconnect(alice);
    await publish(1);
    t.same(world.bugs, []);
  },
);

t.test(
  "a session that joins a group while it lags receives the group's events in merged form",
  async (t) => {
    const { world, sessions } = await liveWorld(["alice"]);
    const [alice] = sessions;
    if (alice === undefined) throw new Error("the world has no live session");
    stopReading(world, alice);
    world.server.setMember("h", "alice", true);
    await world.server.settle();
    world.server.streams.start({ channel: group("h"), fromUid: "bob" });
    for (const word of ["one ", "two ", "three"]) world.server.streams.content("2:h", word);
    await world.server.settle();
    t.equal(eventsOf(alice).length, 0);
    readOn(alice);
    await world.server.settle();
    const [stream] = streamView(alice.connection.seen).streams.values();
    t.equal(stream?.text, "one two three");
    t.ok(alice.session.groups.size === 2 && eventsOf(alice).length < 3);
  },
);

t.test(
  "the snapshot of a stream is pushed to a slow client only after the client has read its unread bytes",
  async (t) => {
    const { world } = await liveWorld(["carol"]);
    world.server.setMember("g", "alice", true);
    world.server.streams.start({ channel: group("g"), fromUid: "bob" });
    const alice = world.session({ uid: "alice" });
    alice.connection.unread = 1000;
    const joining = world.join(alice);
    await world.server.settle();
    await joining;
    t.equal(alice.connection.seen.length, 0);
    world.server.streams.content(channelKey(group("g"), "bob"), "text");
    await world.server.settle();
    readOn(alice);
    await world.server.settle();
    t.match(alice.connection.seen, [{ kind: "stream", snapshot: { text: "text" } }]);
  },
);

for (const how of ["lags", "joins"] as const)
  t.test(
    `a client that ${how} while many streams are active is sent each stream only after it has read the previous one`,
    async (t) => {
      const { world, sessions } = await liveWorld(["alice"]);
      const senders = ["b1", "b2", "b3", "b4", "b5"];
      const [live] = sessions;
      if (live === undefined) throw new Error("the world has no live session");
      if (how === "lags") stopReading(world, live);
      for (const fromUid of senders) {
        const channel = person("alice");
        world.server.streams.start({ channel, fromUid });
        world.server.streams.content(channelKey(channel, fromUid), "text");
        await world.server.settle();
      }
      const alice = how === "lags" ? live : world.session({ uid: "alice" });
      const before = streamView(alice.connection.seen).streams.size;
      if (how === "joins") void world.join(alice);
      else readOn(alice);
      alice.connection.fills = 1000;
      const texts = (): number =>
        [...streamView(alice.connection.seen).streams.values()].filter(
          ({ text }) => text === "text",
        ).length;
      for (let count = 1; count <= senders.length; count++) {
        await world.server.settle();
        t.equal(texts(), count);
        readOn(alice);
      }
      alice.connection.fills = undefined;
      await world.server.settle();
      t.equal(
        before,
        how === "lags" ? senders.length : 0,
        "the streams were first received in their messages",
      );
      const { problems } = streamView(alice.connection.seen);
      t.same(problems, []);
      const whole = alice.connection.seen.filter(({ kind }) => kind === "stream");
      t.equal(whole.length, how === "joins" ? senders.length : 0, "each snapshot is pushed once");
    },
  );

t.test(
  "a lagging session ends if a stream that it has missed cannot be read from the store",
  async (t) => {
    const { world, sessions } = await liveWorld(["alice"]);
    const [alice] = sessions;
    if (alice === undefined) throw new Error("the world has no live session");
    const key = channelKey(group("g"), "bob");
    world.server.streams.start({ channel: group("g"), fromUid: "bob" });
    await world.server.settle();
    stopReading(world, alice);
    world.server.streams.content(key, "text");
    await world.server.settle();
    world.server.isDown = true;
    readOn(alice);
    await world.server.settle();
    t.equal(alice.session.ended, "unavailable");
    t.same(world.bugs, [], "no bug is reported");
  },
);

t.test("a user who is not a member of a group cannot read its streams", async (t) => {
  const { world, sessions } = await liveWorld(["alice"]);
  const [alice] = sessions;
  if (alice === undefined) throw new Error("the world has no live session");
  const ask = async (id: string, clientMsgNo: string): Promise<void> => {
    const channel = group(id);
    const operation = { kind: "stream", ref: 1, channel, clientMsgNo } as const;
    const asking = operator(world)(alice, operation);
    asking.catch(() => undefined); // handled below
    await world.server.settle();
    await asking;
  };
  const channel = group("g");
  const no = world.server.streams.start({ channel, fromUid: "bob" });
  await ask("g", no);
  t.equal(streamView(alice.connection.seen).streams.size, 1);
  await t.rejects(ask("other", no), { code: "not_in_channel" });
  await t.rejects(ask("g", "unknown"), { code: "stream_unknown" });
});

t.test("history is refused to a removed member even before the node is notified", async (t) => {
  const { world, sessions } = await liveWorld(["alice"]);
  const [alice] = sessions;
  if (alice === undefined) throw new Error("the world has no live session");
  const history = async () => {
    world.server.setMember("g", "alice", false); // the event has not arrived yet
    return { messages: [], more: false, headSeq: 0 };
  };
  const asking = operator(world, { history })(alice, {
    ...{ kind: "history", ref: 1, channel: group("g") },
    ...{ fromSeq: 1, toSeq: 0, limit: 10, reverse: false },
  });
  await t.rejects(asking, { code: "not_in_channel" });
  t.ok(alice.session.follows("g"), "the node has not received the removal yet");
});

const CONVERSATION: Conversation = {
  channel: group("g"),
  ...{ headSeq: 3, readSeq: 2, unread: 1, deletedSeq: 0, changedAtMs: 1 },
  last: undefined,
};

t.test("a changed conversation is pushed to the user's other sessions", async (t) => {
  const { world, sessions } = await liveWorld(["alice", "alice", "bob"]);
  const entering = world.session({ uid: "alice" });
  world.hub.enter(entering.session);
  const origin = sessions[0]?.session.sessionId;
  world.hub.deliver({
    ...{ kind: "conversation", uid: "alice", change: "read", origin },
    conversation: CONVERSATION,
  });
  const told = [...sessions, entering].map(({ connection }) => connection.seen.length);
  t.same(told, [0, 1, 0, 0], "a session without a CONNACK is skipped");
  t.match(sessions[1]?.connection.seen, [{ kind: "conversation", change: "read" }]);
});

t.test("operations on conversations, commands and streams get a reply", async (t) => {
  const { world, sessions } = await liveWorld(["alice"]);
  const [alice] = sessions;
  if (alice === undefined) throw new Error("the world has no live session");
  const calls: unknown[] = [];
  const run = operator(world, {
    conversations: {
      async list(uid, page) {
        calls.push({ uid, page });
        return { conversations: [CONVERSATION], cursor: "c3", readCount: 1 };
      },
      async change(by, channel, change) {
        calls.push({ by, channel, change });
        return CONVERSATION;
      },
    },
    cancel: async () => "cancelled",
    acknowledge: async (uid, inboxSeqs) => {
      calls.push({ uid, inboxSeqs });
      return inboxSeqs.length;
    },
  });
  const channel = group("g");
  const change = { kind: "read", seq: 4 } as const;
  await run(alice, { kind: "conversations", ref: 1, limit: 5, cursor: "c2" });
  await run(alice, { kind: "conversation", ref: 2, channel, change });
  await run(alice, { kind: "commandack", ref: 3, inboxSeqs: [4, 7] });
  await run(alice, { kind: "cancel", ref: 4, channel, clientMsgNo: "s" });
  t.match(
    alice.connection.seen.map((one) => one.kind === "reply" && one.reply),
    [
      { kind: "conversations", ref: 1, cursor: "c3", conversations: [{}] },
      { kind: "conversation", ref: 2, conversation: { readSeq: 2 } },
      { kind: "commandack", ref: 3, count: 2 },
      { kind: "cancel", ref: 4, state: "cancelled" },
    ],
  );
  const origin = alice.session.sessionId;
  t.same(calls, [
    { uid: "alice", page: { limit: 5, cursor: "c2", maxBytes: 1000 } },
    { by: { uid: "alice", origin }, channel, change },
    { uid: "alice", inboxSeqs: [4, 7] },
  ]);
});

t.test(
  "a session whose user is removed from groups while it starts to lag gets no events of these groups",
  async (t) => {
    for (const isGone of [false, true]) {
      const ids = Array.from({ length: 9 }, (_, at) => `g${at}`);
      const world = new World(seeded(3));
      for (const id of ids) world.server.changeMember(id, "alice", true);
      const alice = await world.live({ uid: "alice" });
      const { connection, session } = alice;
      for (const id of ids) world.server.publishEvent(custom(group(id), "first"));
      await world.server.settle();
      const unsubscribe = connection.unsubscribe.bind(connection);
      connection.unsubscribe = (topic) => {
        const untilMs = performance.now() + 1; // uses up the time slice
        while (performance.now() < untilMs);
        unsubscribe(topic);
      };
      stopReading(world, alice);
      t.ok(
        [...connection.topics].some((topic) => topic.includes("#")),
        "some groups still push events",
      );
      for (const id of ids) world.server.changeMember(id, "alice", false);
      if (isGone) world.disconnect(alice);
      else for (const id of ids) world.hub.deliver(memberEvent(id, "alice", false));
      await world.server.settle();
      readOn(alice);
      for (const id of ids) world.server.publishEvent(custom(group(id), "secret"));
      await world.server.settle();
      t.same([...connection.topics], [], "the session has no subscriptions left");
      t.ok(eventsOf(alice).every(({ data }) => data === "first"));
      t.equal(session.groups.size, 0);
      t.same(world.bugs, []);
    }
  },
);
