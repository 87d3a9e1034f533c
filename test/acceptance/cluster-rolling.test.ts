// A rolling restart under load: three nodes are replaced one after the other with SIGTERM and a new
// start, while apps on the SDK send and receive through a load balancer. The apps only reconnect:
// they see no error, no refused send, and no message lost, duplicated or out of order.

import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { group, person } from "../../src/client/index.ts";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { Balancer } from "./cluster-balancer.ts";
import { CALM, ClusterNodes } from "./cluster-nodes.ts";
import { Talker, type TalkerMessage } from "./cluster-talker.ts";
import { eventually } from "./logins.ts";

const ROUNDS = Number(process.env.JINDOU_TEST_ROLLS ?? 1);
const TALKERS = ["ann", "ben", "cat", "dan", "eve", "fay"];
const TEAM = "team";
const BETWEEN_MS = 400;

const redis = await startRedis(t);
const nodes = await ClusterNodes.start(t, {
  ...{ redisUrl: redis.url, random: new Random(1) },
  settings: {
    ...CALM,
    JINDOU_DRAIN_TIMEOUT_MS: "2000",
    JINDOU_DRAIN_NOTICE_MS: "1000", // longer than the balancer takes to notice, even on a busy machine
  },
});
const balancer = await Balancer.start(t, nodes);
const url = `ws://127.0.0.1:${balancer.port}`;
await nodes.createGroup(TEAM, TALKERS);
const talkers = TALKERS.map((uid, at) => new Talker(uid, { url, team: TEAM, peer: peerOf(at) }));
t.teardown(() => Promise.all(talkers.map(({ client }) => client.close())));

/** Returns the user to whom the talker at this index writes. */
function peerOf(at: number): string {
  return TALKERS[(at + 1) % TALKERS.length] ?? "";
}

/**
 * Asserts that the received messages are in the order of their seqs, and that the received and sent
 * messages together have every seq from 1 exactly once.
 */
function assertComplete(t: Test, name: string, lists: readonly TalkerMessage[][]): void {
  const [received = []] = lists;
  const seqs = received.map(({ messageSeq }) => messageSeq);
  const sorted = seqs.toSorted((a, b) => a - b);
  t.same(seqs, sorted, `${name} is in seq order`);
  const all = lists.flat().map(({ messageSeq }) => messageSeq);
  all.sort((a, b) => a - b);
  const expected = Array.from({ length: all.length }, (_, at) => at + 1);
  t.same(all, expected, `${name} has each message once`);
}

t.test("apps see no error and miss no message during a rolling restart under load", async (t) => {
  await Promise.all(talkers.map(({ client }) => client.ready()));
  let isOver = false;
  const running = Promise.all(talkers.map((talker) => talker.run(() => isOver)));
  await pause(BETWEEN_MS);
  for (let roll = 0; roll < 3 * ROUNDS; roll++) {
    t.equal(await nodes.terminate(roll % 3), 0, "a node drains and exits with 0");
    await nodes.start(roll % 3);
    await nodes.untilReady();
    await pause(BETWEEN_MS);
  }
  isOver = true;
  await running;

  const teamTotal = talkers.reduce(
    (sum, { sent }) => sum + sent.filter(({ channel }) => channel.type === 2).length,
    0,
  );
  for (const [at, talker] of talkers.entries()) {
    const { uid, sent, surprises, visits } = talker;
    const writer = talkers.at(at - 1);
    const own = sent.filter(({ channel }) => channel.type === 2);
    const teamMessages = () => [...talker.receivedIn(group(TEAM))];
    const personalMessages = () => [...talker.receivedIn(person(writer?.uid ?? ""))];
    const sentToTalker = (writer?.sent ?? []).filter(({ channel }) => channel.id === uid);
    await eventually(`${uid} has received every message`, () => {
      const hasTeam = teamMessages().length + own.length >= teamTotal;
      return hasTeam && personalMessages().length >= sentToTalker.length;
    });
    t.same(surprises, [], `${uid} sees no error`);
    t.ok(visits > 1, `${uid} reconnected: it was online ${visits} times`);
    assertComplete(t, `${uid}: the group`, [teamMessages(), own]);
    assertComplete(t, `${uid}: the personal channel`, [personalMessages()]);
    t.equal(personalMessages().length, sentToTalker.length);
  }
  const numbers = talkers.flatMap(({ sent }) => sent.map((message) => message.clientMsgNo));
  const { body } = await nodes.call(
    `/channel/messages?channel_id=${TEAM}&channel_type=2&limit=1&order=desc`,
  );
  t.equal(body.head_seq, teamTotal, "history contains each sent message once");
  t.comment(`${numbers.length} messages were sent`);
});
