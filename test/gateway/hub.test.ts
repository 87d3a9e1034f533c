// Who gets which push, encoded how often: the hub between a server's events and recorded
// connections.

import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { SYSTEM_UID } from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";
import { clientView } from "./client-view.ts";
import { seeded } from "./random.ts";
import type { CountingCodec } from "./recorder.ts";
import { group, type Joiner, person, World } from "./world.ts";

/** Live sessions of these users, one per entry `uid:format`, all members of group g. */
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

/** What each session got, by how many messages. */
const counts = (sessions: readonly Joiner[]): readonly number[] =>
  sessions.map(({ connection }) => connection.messageNos.length);

t.test("a group's message is encoded once per format", async (t) => {
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

t.test("the sending session gets nothing, its user's others do", async (t) => {
  const names = ["alice:a", "alice:a", "alice:b", "bob:a"];
  const { world, sessions } = await liveWorld(names);
  const origin = sessions[0]?.session.sessionId ?? "";
  world.server.append({ channel: group("g"), fromUid: "alice", origin });
  await world.server.settle();
  t.same(counts(sessions), [0, 1, 1, 1], "group");
  world.server.append({ channel: person("bob"), fromUid: "alice", origin });
  await world.server.settle();
  t.same(counts(sessions), [0, 2, 2, 2], "personal");
});

t.test("a session of another user cannot be the origin", async (t) => {
  const { world, sessions } = await liveWorld(["alice", "bob"]);
  const origin = sessions[1]?.session.sessionId ?? "";
  world.server.append({ channel: group("g"), fromUid: "alice", origin });
  await world.server.settle();
  t.same(counts(sessions), [1, 1]);
});

t.test("a personal message reaches both users, each by the other's name", async (t) => {
  const { world, sessions } = await liveWorld(["alice:a", "bob:a", "bob:a", "carol:a"]);
  const [alice, bob, bobs] = sessions;
  world.server.append({ channel: person("bob"), fromUid: "alice" });
  await world.server.settle();
  t.same(counts(sessions), [1, 1, 1, 0]);
  t.match(alice?.connection.seen, [{ channel: person("bob") }]);
  t.match(bob?.connection.seen, [{ channel: person("alice") }]);
  t.match(bobs?.connection.seen, [{ channel: person("alice") }]);
  t.equal(encodings(sessions, "a"), 2, "once for each of the two views");
});

t.test("a note to oneself comes once to each other device", async (t) => {
  const { world, sessions } = await liveWorld(["alice", "alice"]);
  const origin = sessions[0]?.session.sessionId ?? "";
  world.server.append({ channel: person("alice"), fromUid: "alice", origin });
  await world.server.settle();
  t.same(counts(sessions), [0, 1]);
});

t.test("only named recipients get a restricted message", async (t) => {
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

t.test("a restricted group message is encoded once per format too", async (t) => {
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

t.test("an unstored message of before its connack is not a session's", async (t) => {
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
  t.ok(before.length > 0, "some came before");
  t.same(alice.connection.messageNos, since);
});

t.test("ending a session tells its client why and closes", async (t) => {
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
  t.equal(first?.connection.endedWith, undefined, "not as another user's");
  end("alice", "kicked");
  t.match(first?.connection.seen, [{ kind: "disconnect", reason: "kicked" }]);
  t.equal(first?.connection.endedWith, CLOSE_REASONS.kicked.code);
  end("alice", "replaced");
  t.equal(first?.session.ended, "kicked", "ends once");
  t.equal(second?.connection.endedWith, undefined);
});

t.test("a change of membership reaches a live session at once", async (t) => {
  const { world, sessions } = await liveWorld(["alice", "alice", "bob"]);
  const send = async (): Promise<readonly number[]> => {
    world.server.append({ channel: group("new"), fromUid: "bob" });
    await world.server.settle();
    return counts(sessions);
  };
  t.same(await send(), [0, 0, 0]);
  for (const uid of ["alice", "alice", "bob"]) world.server.setMember("new", uid, true);
  await world.server.settle();
  t.same(await send(), [1, 1, 1], "added twice is added once");
  world.server.setMember("new", "alice", false);
  await world.server.settle();
  t.same(await send(), [1, 1, 2]);
  world.server.setMember("new", "bob", false);
  await world.server.settle();
  t.notOk(world.server.listened.has("g:new"), "nobody is left to listen for");
});

t.test("the node listens to a user's topic while any session is in", async (t) => {
  const { world, sessions } = await liveWorld(["alice", "alice"]);
  for (const [at, one] of sessions.entries()) {
    t.ok(world.server.listened.has("u:alice"));
    t.ok(world.server.listened.has("g:g"));
    t.equal(world.hub.sessionsOf("alice").length, sessions.length - at);
    world.disconnect(one);
    await world.server.settle();
  }
  t.equal(world.server.listened.size, 0);
  t.same(world.hub.sessionsOf("alice"), []);
});

t.test("fan-outs and deliveries are counted", async (t) => {
  const { world } = await liveWorld(["alice", "bob", "carol"]);
  world.server.append({ channel: group("g"), fromUid: "bob" });
  world.server.append({ channel: person("carol"), fromUid: "bob" });
  await world.server.settle();
  t.same(world.hub.stats, { fanouts: 2, deliveries: 5 });
});

t.test(
  "a session whose new group cannot be listened to at first stays, and is given it later",
  async (t) => {
    const world = new World(seeded(1));
    const { session, connection } = await world.live({ uid: "a" });
    let refusals = 2;
    world.server.refuses = (topic) => topic === "g:g" && refusals-- > 0;
    world.server.setMember("g", "a", true);
    const sent = world.server.append({ channel: group("g"), fromUid: "b" });
    for (let at = 0; at < 5000 && !session.follows("g"); at++) {
      await world.server.settle();
      await new Promise((go) => setTimeout(go, 1));
    }
    t.same(clientView(connection.seen, []).nos, [sent]);
    t.equal(session.ended, undefined);
    t.ok(refusals < 0, "it was refused");
  },
);

t.test("a user whose topic cannot be listened to does not join", async (t) => {
  const world = new World(seeded(1));
  world.server.refuses = () => true;
  const { session } = world.session({ uid: "a" });
  world.hub.enter(session);
  const subscribed = world.hub.subscribe(session);
  await t.rejects(subscribed, { code: "unavailable" });
});
