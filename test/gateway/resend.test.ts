// Stored messages are sent again to clients that do not acknowledge them. The times are short and
// never measured. A test concludes that a message is not sent again when a later message was sent
// again.

import { SYSTEM_UID } from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";
import { seeded } from "./random.ts";
import { group, type Joiner, World } from "./world.ts";

const AFTER_MS = 10;
/** Number of times that a message is sent in total: once, and five more times. */
const TIMES = 6;

async function members(uids: readonly string[], resendAfterMs = AFTER_MS) {
  const world = new World(seeded(3));
  for (const uid of uids) world.server.setMember("g", uid, true);
  const sessions: Joiner[] = [];
  for (const uid of uids)
    sessions.push(await world.live({ uid, acknowledges: true, resendAfterMs }));
  t.teardown(() => {
    for (const session of sessions) world.disconnect(session);
  });
  return { world, sessions };
}

function sessionAt(sessions: readonly Joiner[], at: number): Joiner {
  const session = sessions[at];
  if (session === undefined) throw new Error("no such session");
  return session;
}

/** Sends a message to the group and resolves to its `clientMsgNo`. */
async function send(world: World, noPersist = false): Promise<string> {
  const channel = group("g");
  const no = world.server.append({ channel, fromUid: SYSTEM_UID, noPersist });
  await world.server.settle();
  return no;
}

const timesOf = ({ connection }: Joiner, no: string) =>
  connection.messageNos.filter((one) => one === no).length;

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, AFTER_MS));
}

function acknowledge(world: World, { session }: Joiner, no: string): void {
  session.acknowledged(world.server.idOf("2:g", no));
}

t.test("an unacknowledged message is sent again five times, then no more", async (t) => {
  const { world, sessions } = await members(["alice"]);
  const alice = sessionAt(sessions, 0);
  const first = await send(world);
  await until(() => timesOf(alice, first) === TIMES);
  const second = await send(world);
  await until(() => timesOf(alice, second) === TIMES);
  t.equal(timesOf(alice, first), TIMES);
});

t.test(
  "only stored messages that a client did not acknowledge are sent to that client again",
  async (t) => {
    const { world, sessions } = await members(["alice", "bob"], 50);
    const alice = sessionAt(sessions, 0);
    const bob = sessionAt(sessions, 1);
    const first = await send(world);
    acknowledge(world, alice, first);
    const before = timesOf(alice, first);
    const unstored = await send(world, true);
    const last = await send(world);
    await until(() => timesOf(bob, last) > 1 && timesOf(alice, last) > 1);
    t.equal(timesOf(alice, first), before, "an acknowledged message is not sent again");
    t.ok(timesOf(bob, first) > 1, "a message that another client acknowledged is sent again");
    t.equal(timesOf(alice, unstored), 1, "an unstored message is not sent again");
  },
);

t.test(
  "all unacknowledged messages are sent again, even while the client has some unread bytes",
  async (t) => {
    const { world, sessions } = await members(["alice"]);
    const alice = sessionAt(sessions, 0);
    alice.connection.fills = 1000;
    const nos = [await send(world), await send(world), await send(world)];
    await until(() => nos.every((no) => timesOf(alice, no) === TIMES));
    t.same(
      nos.map((no) => timesOf(alice, no)),
      nos.map(() => TIMES),
    );
  },
);

t.test(
  "an unacknowledged message that was pushed during catch-up is also sent again",
  async (t) => {
    const { world } = await members([]);
    world.server.setMember("g", "alice", true);
    const no = await send(world);
    const points = [{ channel: group("g"), lastSeq: 0 }];
    const options = { acknowledges: true, resendAfterMs: AFTER_MS };
    const alice = await world.live({ uid: "alice", points, ...options });
    t.teardown(() => world.disconnect(alice));
    await until(() => timesOf(alice, no) > 1);
    t.pass("the message was sent again");
  },
);

t.test("messages of a group that the user left are not sent again", async (t) => {
  const { world, sessions } = await members(["alice", "bob"], 50);
  const alice = sessionAt(sessions, 0);
  const bob = sessionAt(sessions, 1);
  const no = await send(world);
  world.server.setMember("g", "alice", false);
  await world.server.settle();
  const before = timesOf(alice, no);
  const last = await send(world);
  await until(() => timesOf(bob, last) > 1);
  t.equal(timesOf(alice, no), before);
});

t.test(
  "unacknowledged messages are not sent again to a client with more than 65,536 unread bytes",
  async (t) => {
    const { world, sessions } = await members(["alice", "bob"]);
    const alice = sessionAt(sessions, 0);
    const bob = sessionAt(sessions, 1);
    const no = await send(world);
    alice.connection.unread = 100_000;
    const before = timesOf(alice, no);
    await until(() => timesOf(bob, no) === TIMES);
    t.equal(timesOf(alice, no), before);
  },
);

t.test("no message is sent again if the resend time is 0", async (t) => {
  const { world, sessions } = await members(["alice"], 0);
  const alice = sessionAt(sessions, 0);
  const other = await world.live({
    ...{ uid: "alice", acknowledges: true, resendAfterMs: AFTER_MS },
  });
  t.teardown(() => world.disconnect(other));
  const no = await send(world);
  await until(() => timesOf(other, no) === TIMES);
  t.equal(timesOf(alice, no), 1);
});

t.test(
  "an unacknowledged message is sent again even after 1,000 later messages were acknowledged",
  async (t) => {
    const { world, sessions } = await members(["alice"], 200);
    const alice = sessionAt(sessions, 0);
    const first = await send(world);
    for (let count = 0; count < 1000; count++) acknowledge(world, alice, await send(world));
    await until(() => timesOf(alice, first) === TIMES);
    const last = await send(world);
    await until(() => timesOf(alice, last) > 2);
    t.equal(timesOf(alice, first), TIMES, "the message is sent again five times in total");
  },
);

t.test(
  "if 300 messages are unacknowledged, only the newest 256 are sent again, except those acknowledged in the meantime",
  async (t) => {
    const { world, sessions } = await members(["alice"], 200);
    const alice = sessionAt(sessions, 0);
    const input = { channel: group("g"), fromUid: SYSTEM_UID };
    const nos = Array.from({ length: 300 }, () => world.server.append(input));
    await world.server.settle();
    acknowledge(world, alice, nos[299] ?? "");
    acknowledge(world, alice, nos[100] ?? "");
    const before = nos.map((no) => timesOf(alice, no));
    const again = () =>
      nos.flatMap((no, at) => (timesOf(alice, no) > (before[at] ?? 0) ? [at] : []));
    await until(() => again().length >= 254);
    const last = again();
    t.equal(last[0], 44, "the oldest message that is sent again is number 44");
    t.same(
      [100, 299].filter((at) => last.includes(at)),
      [],
      "acknowledged messages are not sent again",
    );
    t.equal(last.length, 254);
  },
);
