// Events one at a time: who gets which, encoded how often, what a lagging session keeps and what
// ends it, and what else its user hears.

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

/** Live sessions, one per entry `uid:format`, all members of group g. */
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

t.test("a group's event is encoded once per format", async (t) => {
  const { world, sessions } = await liveWorld(["a1:a", "a2:a", "b1:b", "a3:a"]);
  world.server.tell(custom(group("g"), "hello"));
  await world.server.settle();
  for (const one of sessions) {
    t.same(
      eventsOf(one).map(({ data }) => data),
      ["hello"],
    );
    t.match(one.connection.seen.at(-1), { channel: group("g") });
  }
  const encoded = sessions.map(({ codec }) => codec.encodedPushes);
  t.equal(
    encoded.reduce((sum, one) => sum + one, 0),
    2,
  );
});

t.test(
  "an event of a personal channel reaches both users' sessions, each by the other's name",
  async (t) => {
    const names = ["alice", "alice", "bob", "carol"];
    const { world, sessions } = await liveWorld(names);
    world.server.tell(custom(person("alice"), "hello"));
    await world.server.settle();
    const channels = sessions.map(({ connection }) =>
      connection.seen.map((one) => "channel" in one && one.channel.id),
    );
    t.same(channels, [["bob"], ["bob"], ["alice"], []]);
  },
);

t.test("who left the group gets no event of it any more", async (t) => {
  const { world, sessions } = await liveWorld(["alice", "carol"]);
  const [alice, carol] = sessions;
  if (alice === undefined || carol === undefined) throw new Error("none");
  stopReading(world, carol);
  world.server.tell(custom(group("g"), "1"));
  await world.server.settle();
  for (const uid of ["alice", "carol"]) world.server.setMember("g", uid, false);
  await world.server.settle();
  world.server.tell(custom(group("g"), "2"));
  readOn(carol);
  await world.server.settle();
  t.equal(eventsOf(alice).length, 1);
  t.same(eventsOf(carol), [], "nor what was withheld");
  t.equal(carol.connection.topics.size, 0);
});

t.test("a lagging session gets the rest of a stream as one event, in its place", async (t) => {
  const { world, sessions } = await liveWorld(["alice", "carol"]);
  const [alice, carol] = sessions;
  if (alice === undefined || carol === undefined) throw new Error("none");
  const { streams } = world.server;
  const key = channelKey(group("g"), "bob");
  streams.start({ channel: group("g"), fromUid: "bob" });
  streams.content(key, "one ");
  await world.server.settle();
  stopReading(world, alice);
  world.server.tell(custom(group("g"), "before"));
  for (const word of ["two ", "three ", "four "]) streams.content(key, word);
  world.server.tell(custom(group("g"), "between"));
  streams.content(key, "five");
  await world.server.settle();
  t.equal(eventsOf(alice).length, 2, "nothing while it lags");
  t.equal(eventsOf(carol).length, 8, "the others notice nothing");
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
  t.equal(eventsOf(alice).length, 6, "and live from there");
});

t.test("what a lagging session missed of other events is bounded", async (t) => {
  const { world } = await liveWorld(["carol"]);
  world.server.setMember("g", "alice", true);
  const alice = await world.live({ uid: "alice", maxHeldBytes: 5000 });
  const tell = async (count: number): Promise<void> => {
    for (let at = 0; at < count; at++) world.server.tell(custom(group("g"), "x".repeat(100)));
    await world.server.settle();
  };
  for (let round = 0; round < 5; round++) {
    stopReading(world, alice);
    await tell(10);
    readOn(alice);
    await world.server.settle();
  }
  t.equal(eventsOf(alice).length, 50, "it is on what is kept at one time");
  stopReading(world, alice);
  await tell(20);
  t.equal(alice.session.ended, "slow_reader");
  t.equal(alice.connection.endedWith, CLOSE_REASONS.slow_reader.code);
  world.disconnect(alice);
  await tell(1);
  t.same(world.bugs, []);
});

t.test("a group joined while lagging has its events merged too", async (t) => {
  const { world, sessions } = await liveWorld(["alice"]);
  const [alice] = sessions;
  if (alice === undefined) throw new Error("none");
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
});

t.test("a snapshot waits until the client has read enough", async (t) => {
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
});

for (const how of ["lags", "joins"] as const)
  t.test(
    `a client that ${how} behind many streams is given one, then as many as it reads`,
    async (t) => {
      const { world, sessions } = await liveWorld(["alice"]);
      const senders = ["b1", "b2", "b3", "b4", "b5"];
      const [live] = sessions;
      if (live === undefined) throw new Error("none");
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
      t.equal(before, how === "lags" ? senders.length : 0, "as messages");
      const { problems } = streamView(alice.connection.seen);
      t.same(problems, []);
      const whole = alice.connection.seen.filter(({ kind }) => kind === "stream");
      t.equal(whole.length, how === "joins" ? senders.length : 0, "each once");
    },
  );

t.test("a stream that cannot be read ends the session", async (t) => {
  const { world, sessions } = await liveWorld(["alice"]);
  const [alice] = sessions;
  if (alice === undefined) throw new Error("none");
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
  t.same(world.bugs, [], "which is no bug");
});

t.test("asking for a stream one may not see is refused", async (t) => {
  const { world, sessions } = await liveWorld(["alice"]);
  const [alice] = sessions;
  if (alice === undefined) throw new Error("none");
  const ask = async (id: string, clientMsgNo: string): Promise<void> => {
    const channel = group(id);
    const operation = { kind: "stream", ref: 1, channel, clientMsgNo } as const;
    const asking = operator(world)(alice, operation);
    asking.catch(() => undefined); // awaited below
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

t.test("history read behind a removal is refused before the removal is delivered", async (t) => {
  const { world, sessions } = await liveWorld(["alice"]);
  const [alice] = sessions;
  if (alice === undefined) throw new Error("none");
  const history = async () => {
    world.server.setMember("g", "alice", false); // its event is on the way
    return { messages: [], more: false, headSeq: 0 };
  };
  const asking = operator(world, { history })(alice, {
    ...{ kind: "history", ref: 1, channel: group("g") },
    ...{ fromSeq: 1, toSeq: 0, limit: 10, reverse: false },
  });
  await t.rejects(asking, { code: "not_in_channel" });
  t.ok(alice.session.follows("g"), "the node does not know yet");
});

const CONVERSATION: Conversation = {
  channel: group("g"),
  ...{ headSeq: 3, readSeq: 2, unread: 1, deletedSeq: 0, changedAtMs: 1 },
  last: undefined,
};

t.test("a changed conversation is told to the user's other sessions", async (t) => {
  const { world, sessions } = await liveWorld(["alice", "alice", "bob"]);
  const entering = world.session({ uid: "alice" });
  world.hub.enter(entering.session);
  const origin = sessions[0]?.session.sessionId;
  world.hub.deliver({
    ...{ kind: "conversation", uid: "alice", change: "read", origin },
    conversation: CONVERSATION,
  });
  const told = [...sessions, entering].map(({ connection }) => connection.seen.length);
  t.same(told, [0, 1, 0, 0], "but for one that has no connack yet");
  t.match(sessions[1]?.connection.seen, [{ kind: "conversation", change: "read" }]);
});

t.test("operations on conversations, commands and streams answer", async (t) => {
  const { world, sessions } = await liveWorld(["alice"]);
  const [alice] = sessions;
  if (alice === undefined) throw new Error("none");
  const calls: unknown[] = [];
  const run = operator(world, {
    conversations: {
      async list(uid, page) {
        calls.push({ uid, page });
        return { conversations: [CONVERSATION], more: true, looked: 1 };
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
  await run(alice, { kind: "conversations", ref: 1, limit: 5, offset: 2 });
  await run(alice, { kind: "conversation", ref: 2, channel, change });
  await run(alice, { kind: "commandack", ref: 3, inboxSeqs: [4, 7] });
  await run(alice, { kind: "cancel", ref: 4, channel, clientMsgNo: "s" });
  t.match(
    alice.connection.seen.map((one) => one.kind === "reply" && one.reply),
    [
      { kind: "conversations", ref: 1, more: true, conversations: [{}] },
      { kind: "conversation", ref: 2, conversation: { readSeq: 2 } },
      { kind: "commandack", ref: 3, count: 2 },
      { kind: "cancel", ref: 4, state: "cancelled" },
    ],
  );
  const origin = alice.session.sessionId;
  t.same(calls, [
    { uid: "alice", page: { limit: 5, offset: 2, maxBytes: 1000 } },
    { by: { uid: "alice", origin }, channel, change },
    { uid: "alice", inboxSeqs: [4, 7] },
  ]);
});

t.test(
  "a session that is removed from its groups while it begins to lag gets none of their events",
  async (t) => {
    for (const isGone of [false, true]) {
      const ids = Array.from({ length: 9 }, (_, at) => `g${at}`);
      const world = new World(seeded(3));
      for (const id of ids) world.server.changeMember(id, "alice", true);
      const alice = await world.live({ uid: "alice" });
      const { connection, session } = alice;
      const unsubscribe = connection.unsubscribe.bind(connection);
      connection.unsubscribe = (topic) => {
        const untilMs = performance.now() + 1; // uses up the slice
        while (performance.now() < untilMs);
        unsubscribe(topic);
      };
      stopReading(world, alice);
      t.ok(
        [...connection.topics].some((topic) => topic.includes("#")),
        "it has groups left to fall behind in",
      );
      for (const id of ids) world.server.changeMember(id, "alice", false);
      if (isGone) world.disconnect(alice);
      else for (const id of ids) world.hub.deliver(memberEvent(id, "alice", false));
      await world.server.settle();
      readOn(alice);
      for (const id of ids) world.server.tell(custom(group(id), "secret"));
      await world.server.settle();
      t.same([...connection.topics], [], "it is subscribed to nothing");
      t.same(eventsOf(alice), []);
      t.equal(session.groups.size, 0);
      t.same(world.bugs, []);
    }
  },
);
