// Issue 4, line 5: three nodes are exchanged one after the other under load, by SIGTERM and a new
// start, with apps on the SDK behind a balancer. Apps notice nothing but that they reconnect: no
// error, no refused send, no message lost, doubled or out of order.

import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { group, person } from "../../src/client/index.ts";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { Balancer } from "./cluster-balancer.ts";
import { CALM, ClusterNodes } from "./cluster-nodes.ts";
import { type Heard, Talker } from "./cluster-talker.ts";
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
    JINDOU_DRAIN_NOTICE_MS: "1000", // the balancer's checks are quicker, on a busy machine too
  },
});
const balancer = await Balancer.start(t, nodes);
const url = `ws://127.0.0.1:${balancer.port}`;
await nodes.createGroup(TEAM, TALKERS);
const talkers = TALKERS.map((uid, at) => new Talker(uid, { url, team: TEAM, peer: peerOf(at) }));
t.teardown(() => Promise.all(talkers.map(({ client }) => client.close())));

/** Whom a talker writes to. */
function peerOf(at: number): string {
  return TALKERS[(at + 1) % TALKERS.length] ?? "";
}

/** In seq order from 1 without a gap or a repeat: what was heard and what was sent together. */
function assertWhole(t: Test, who: string, parts: readonly Heard[][]): void {
  const [heard = []] = parts;
  const seqs = heard.map(({ messageSeq }) => messageSeq);
  const sorted = seqs.toSorted((one, other) => one - other);
  t.same(seqs, sorted, `${who} in order`);
  const all = parts.flat().map(({ messageSeq }) => messageSeq);
  all.sort((one, other) => one - other);
  const whole = Array.from({ length: all.length }, (_, at) => at + 1);
  t.same(all, whole, `${who} each once`);
}

t.test("a rolling restart under load", async (t) => {
  await Promise.all(talkers.map(({ client }) => client.ready()));
  let isOver = false;
  const running = Promise.all(talkers.map((one) => one.run(() => isOver)));
  await pause(BETWEEN_MS);
  for (let roll = 0; roll < 3 * ROUNDS; roll++) {
    t.equal(await nodes.terminate(roll % 3), 0, "a node drains and ends");
    await nodes.start(roll % 3);
    await nodes.untilReady();
    await pause(BETWEEN_MS);
  }
  isOver = true;
  await running;

  const wanted = talkers.reduce(
    (sum, { sent }) => sum + sent.filter(({ channel }) => channel.type === 2).length,
    0,
  );
  for (const [at, talker] of talkers.entries()) {
    const { uid, sent, surprises, visits } = talker;
    const writer = talkers.at(at - 1);
    const own = sent.filter(({ channel }) => channel.type === 2);
    const team = () => [...talker.heardIn(group(TEAM))];
    const letters = () => [...talker.heardIn(person(writer?.uid ?? ""))];
    const posted = (writer?.sent ?? []).filter(({ channel }) => channel.id === uid);
    await eventually(`${uid} has everything`, () => {
      const hasTeam = team().length + own.length >= wanted;
      return hasTeam && letters().length >= posted.length;
    });
    t.same(surprises, [], `${uid} notices nothing`);
    t.ok(visits > 1, `${uid} was online ${visits} times`);
    assertWhole(t, `${uid}: the team`, [team(), own]);
    assertWhole(t, `${uid}: letters`, [letters()]);
    t.equal(letters().length, posted.length);
  }
  const numbers = talkers.flatMap(({ sent }) => sent.map((one) => one.clientMsgNo));
  const { body } = await nodes.call(
    `/channel/messages?channel_id=${TEAM}&channel_type=2&limit=1&order=desc`,
  );
  t.equal(body.head_seq, wanted, "history holds what was sent, once");
  t.comment(`${numbers.length} messages`);
});
