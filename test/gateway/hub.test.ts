// The hub between the events of a server and recorded connections: which sessions are pushed an
// event, and how often it is encoded.

import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { SYSTEM_UID } from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";
import { clientView } from "./client-view.ts";
import { seeded } from "./random.ts";
import type { CountingCodec } from "./recorder.ts";
import { group, type Joiner, person, World } from "./world.ts";

/** Creates live sessions, one per entry `uid:format`, all members of group g. */
async function liveWorld(names: readonly string[]): Promise<{
  readonly world: World;
  readonly sessions: readonly Joiner[];
}> {
  const world = new World(seeded(7));
  for (const name of names) world.server.setMember("g", name.split(":")[0] ?? "", true);
  const sessions: Joiner[] = [];
  for (const name of names) {
    const [uid = "", format = "a"] = name.split(":");
    sessions.push(await world.live({ uid, format }));
  }
  return { world, sessions };
}

function encodings(sessions: readonly Joiner[], format: string): number {
  return sessions
    .map(({ codec }): CountingCodec => codec)
    .filter((codec) => codec.format === format)
    .reduce((sum, codec) => sum + codec.encodedPushes, 0);
}

/** Returns the number of messages that each session received. */
const counts = (sessions: readonly Joiner[]): readonly number[] =>
  sessions.map(({ connection }) => connection.messageNos.length);

t.test("a message to a group is encoded once per wire format", async (t) => {
  const names = ["alice:a", "bob:a", "carol:b", "dave:b", "erin:a", "bob:b"];
  const { world, sessions } = await liveWorld(names);
  world.server.append({ channel: group("g"), fromUid: SYSTEM_UID });
  await world.server.settle();
  t.same(counts(sessions), [1, 1, 1, 1, 1, 1]);
  t.equal(encodings(sessions, "a"), 1);
  t.equal(encodings(sessions, "b"), 1);
  for (const { connection, codec } of sessions)
    t.match(connection.seen, [{ format: codec.format, channel: group("g") }]);
});

t.test(
  "a message is pushed to the sender's other sessions, but not to the sending session",
  async (t) => {
    const names = ["alice:a", "alice:a", "alice:b", "bob:a"];
    const { world, sessions } = await liveWorld(names);
    const origin = sessions[0]?.session.sessionId ?? "";
    world.server.append({ channel: group("g"), fromUid: "alice", origin });
    await world.server.settle();
    t.same(counts(sessions), [0, 1, 1, 1], "the group's message reaches three sessions");
    world.server.append({ channel: person("bob"), fromUid: "alice", origin });
    await world.server.settle();
    t.same(counts(sessions), [0, 2, 2, 2], "the personal message reaches three sessions");
  },
);

t.test(
  "a message that names a session of another user as its origin is pushed to that session too",
  async (t) => {
    const { world, sessions } = await liveWorld(["alice", "bob"]);
    const origin = sessions[1]?.session.sessionId ?? "";
    world.server.append({ channel: group("g"), fromUid: "alice", origin });
    await world.server.settle();
    t.same(counts(sessions), [1, 1]);
  },
);

t.test("a personal message reaches each user under the uid of the other user", async (t) => {
  const { world, sessions } = await liveWorld(["alice:a", "bob:a", "bob:a", "carol:a"]);
  const [alice, bob, bobs] = sessions;
  world.server.append({ channel: person("bob"), fromUid: "alice" });
  await world.server.settle();
  t.same(counts(sessions), [1, 1, 1, 0]);
  t.match(alice?.connection.seen, [{ channel: person("bob") }]);
  t.match(bob?.connection.seen, [{ channel: person("alice") }]);
  t.match(bobs?.connection.seen, [{ channel: person("alice") }]);
  t.equal(encodings(sessions, "a"), 2, "the message is encoded once per channel id");
});

t.test("a message to oneself reaches each of the user's other devices once", async (t) => {
  const { world, sessions } = await liveWorld(["alice", "alice"]);
  const origin = sessions[0]?.session.sessionId ?? "";
  world.server.append({ channel: person("alice"), fromUid: "alice", origin });
  await world.server.settle();
  t.same(counts(sessions), [0, 1]);
});

t.test("a message with a list of recipients reaches only these recipients", async (t) => {
  const { world, sessions } = await liveWorld(["alice", "bob", "bob", "carol"]);
  const origin = sessions[1]?.session.sessionId ?? "";
  world.server.append({
    channel: group("g"),
    fromUid: "bob",
    origin,
    recipients: ["bob", "carol", "nobody"],
  });
  await world.server.settle();
  t.same(counts(sessions), [0, 0, 1, 1]);
});

t.test("a group message with a list of recipients is encoded once per wire format", async (t) => {
  const names = ["alice:a", "bob:a", "carol:b", "dave:a", "dave:b"];
  const { world, sessions } = await liveWorld(names);
  world.server.append({
    channel: group("g"),
    fromUid: SYSTEM_UID,
    recipients: ["alice", "bob", "carol", "dave"],
  });
  await world.server.settle();
  t.same(counts(sessions), [1, 1, 1, 1, 1]);
  t.equal(encodings(sessions, "a"), 1);
  t.equal(encodings(sessions, "b"), 1);
});

t.test("a session that is joining gets no held copy of its own message", async (t) => {
  const { world } = await liveWorld(["bob"]);
  world.server.setMember("g", "alice", true);
  world.server.append({ channel: group("g"), fromUid: "bob" });
  await world.server.settle();
  const points = [{ channel: group("g"), lastSeq: 0 }];
  const alice = world.session({ uid: "alice", points });
  const joining = world.join(alice);
  const holds = () => world.groups.get("g")?.backlogOf(alice.session)?.isHolding ?? false;
  while (!holds()) await world.server.step();
  const { sessionId: origin } = alice.session;
  const event = { fromUid: "alice", noPersist: true };
  world.server.append({ channel: group("g"), ...event, origin });
  world.server.append({ channel: person("bob"), ...event, origin });
  const other = world.server.append({ channel: group("g"), ...event });
  await world.server.settle();
  await joining;
  t.same(alice.connection.messageNos, [other]);
});

t.test("a session is not pushed unstored messages from before its CONNACK", async (t) => {
  const { world } = await liveWorld(["bob"]);
  const alice = world.session({ uid: "alice" });
  const before: string[] = [];
  const since: string[] = [];
  world.onDelivered = (event) => {
    if (event.kind !== "message") return;
    const { hasConnack } = alice.session;
    (hasConnack ? since : before).push(event.message.clientMsgNo);
  };
  const joining = world.join(alice);
  const to = { channel: person("alice"), fromUid: "bob", noPersist: true };
  while (!alice.isLive) {
    world.server.append(to);
    await world.server.step();
  }
  await world.server.settle();
  await joining;
  t.ok(before.length > 0, "some messages were sent before the CONNACK");
  t.same(alice.connection.messageNos, since);
});

t.test("a client is sent the reason and disconnected when its session is ended", async (t) => {
  const { world, sessions } = await liveWorld(["alice", "alice"]);
  const [first, second] = sessions;
  const end = (uid: string, reason: "kicked" | "replaced"): void =>
    world.hub.deliver({
      kind: "end_session",
      uid,
      sessionId: first?.session.sessionId ?? "",
      reason,
    });
  end("bob", "kicked");
  t.equal(
    first?.connection.endedWith,
    undefined,
    "an event for another user does not end the session",
  );
  end("alice", "kicked");
  t.match(first?.connection.seen, [{ kind: "disconnect", reason: "kicked" }]);
  t.equal(first?.connection.endedWith, CLOSE_REASONS.kicked.code);
  end("alice", "replaced");
  t.equal(first?.session.ended, "kicked", "the session ends once");
  t.equal(second?.connection.endedWith, undefined);
});

t.test(
  "live sessions receive a group's messages after their user is added, and none after the user is removed",
  async (t) => {
    const { world, sessions } = await liveWorld(["alice", "alice", "bob"]);
    const send = async (): Promise<readonly number[]> => {
      world.server.append({ channel: group("new"), fromUid: "bob" });
      await world.server.settle();
      return counts(sessions);
    };
    t.same(await send(), [0, 0, 0]);
    for (const uid of ["alice", "alice", "bob"]) world.server.setMember("new", uid, true);
    await world.server.settle();
    t.same(await send(), [1, 1, 1], "a user who is added twice gets each message once");
    world.server.setMember("new", "alice", false);
    await world.server.settle();
    t.same(await send(), [1, 1, 2]);
    world.server.setMember("new", "bob", false);
    await world.server.settle();
    t.notOk(
      world.server.subscriptions.has("g:new"),
      "the node is no longer subscribed to the group",
    );
  },
);

t.test("the node is subscribed to a user's topic while the user has a session", async (t) => {
  const { world, sessions } = await liveWorld(["alice", "alice"]);
  for (const [at, joiner] of sessions.entries()) {
    t.ok(world.server.subscriptions.has("u:alice"));
    t.ok(world.server.subscriptions.has("g:g"));
    t.equal(world.hub.sessionsOf("alice").length, sessions.length - at);
    world.disconnect(joiner);
    await world.server.settle();
  }
  t.equal(world.server.subscriptions.size, 0);
  t.same(world.hub.sessionsOf("alice"), []);
});

t.test("the hub counts fan-outs and deliveries", async (t) => {
  const { world } = await liveWorld(["alice", "bob", "carol"]);
  world.server.append({ channel: group("g"), fromUid: "bob" });
  world.server.append({ channel: person("carol"), fromUid: "bob" });
  await world.server.settle();
  t.same(world.hub.stats, { fanouts: 2, deliveries: 5 });
});

t.test(
  "a session stays open and joins a new group later if subscribing to the group fails at first",
  async (t) => {
    const world = new World(seeded(1));
    const { session, connection } = await world.live({ uid: "a" });
    let refusals = 2;
    world.server.isRefused = (topic) => topic === "g:g" && refusals-- > 0;
    world.server.setMember("g", "a", true);
    const sent = world.server.append({ channel: group("g"), fromUid: "b" });
    for (let at = 0; at < 5000 && !session.follows("g"); at++) {
      await world.server.settle();
      await new Promise((go) => setTimeout(go, 1));
    }
    t.same(clientView(connection.seen, []).nos, [sent]);
    t.equal(session.ended, undefined);
    t.ok(refusals < 0, "the subscription was refused at first");
  },
);

t.test(
  "a session is rejected with `unavailable` if subscribing to the topic of its user fails",
  async (t) => {
    const world = new World(seeded(1));
    world.server.isRefused = () => true;
    const { session } = world.session({ uid: "a" });
    world.hub.enter(session);
    const subscribe = async () => world.hub.subscribe(session);
    await t.rejects(subscribe, { code: "unavailable" });
  },
);
